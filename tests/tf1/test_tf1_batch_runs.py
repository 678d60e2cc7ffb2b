"""Tests hooks that run train operations on batches, against TensorFlow 1.15."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import assert_same, estimator, values_of

X = np.linspace(-1, 2, 48).astype("float32").reshape(24, 2)
A, B = "a", "b"
STORED = []
# The values of TensorFlow 1.15.5.
UNEVEN = {
    A: [0.38656533, 0.40351152],
    B: [-0.46873331, -0.46327621],
    "global_step": 2,
}


def input_fn(batches=None, size=4):
    """Yields the same six batches again and again, or only some of them."""

    def read(params):
        data = tf.data.Dataset.from_tensor_slices(X).repeat().batch(size)
        return data if batches is None else data.take(batches)

    return read


class Trains(tf.train.SessionRunHook):
    """Runs operations a number of times before each run."""

    def __init__(self, operations, times=1):
        self.operations, self.times = operations, times
        self.got, self.is_ended = [], False

    def before_run(self, run_context):
        for _ in range(self.times):
            self.got.append(run_context.session.run(self.operations))

    def end(self, session):
        self.is_ended = True


def model_fn_of(hooks_of, is_ordered=False):
    """Returns a `model_fn` whose own train operation only counts the step.

    Args:
        hooks_of: A function of two train operations that returns hooks.
        is_ordered: Whether the second operation waits for the first one.
    """

    def model_fn(features, labels, mode, params):
        a = tf.get_variable(A, [2], initializer=tf.constant_initializer(0.5))
        b = tf.get_variable(B, [2], initializer=tf.constant_initializer(-0.5))
        loss = tf.reduce_mean((features * b - a) ** 2)
        optimizer = tf.train.MomentumOptimizer(0.05, 0.9)
        if params["use_tpu"]:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        of_a = tf.reduce_mean((features * a + b - 1) ** 2, name="of_a")
        train_a = optimizer.minimize(of_a, var_list=[a])
        with tf.control_dependencies([train_a] if is_ordered else []):
            of_b = tf.reduce_mean((features * b - a.read_value()) ** 2)
            train_b = optimizer.minimize(of_b, var_list=[b])
        step = tf.train.get_or_create_global_step()
        hooks = hooks_of(train_a, train_b) if mode == kte.ModeKeys.TRAIN else []
        return kte.tf1.TPUEstimatorSpec(
            mode, loss=loss, train_op=step.assign_add(1), training_hooks=hooks
        )

    return model_fn


def in_turn(times):
    """Returns hooks like those of a sequential GAN, and the list that records them."""
    hooks = []

    def hooks_of(train_a, train_b):
        hooks[:] = [Trains(train_a, times), Trains([train_b])]
        return hooks

    return hooks_of, hooks


def trained_values(program):
    values = values_of(program)
    return {name: values[name] for name in (A, B, "global_step")}


@pytest.mark.parametrize(
    ("times", "batches", "a", "b", "step", "runs"),
    [
        (1, None, [0.25573787, 0.30112451], [-0.29870018, -0.27458444], 4, [4, 4]),
        (2, None, [0.57755888, 0.66629052], [-0.3336125, -0.3124448], 4, [8, 4]),
        # The input ends in the first hook.
        (2, 9, [0.45136189, 0.49734816], [-0.48880196, -0.48749301], 2, [5, 2]),
    ],
)
def test_hooks_train_in_turn(times, batches, a, b, step, runs, tmp_path):
    # The values of TensorFlow 1.15.5.
    hooks_of, hooks = in_turn(times)
    program = estimator(model_fn_of(hooks_of), tmp_path, use_tpu=False)
    program.train(input_fn(batches), steps=4)
    expected = {A: a, B: b, "global_step": step}
    assert_same(trained_values(program), expected)
    assert [len(each.got) for each in hooks] == runs
    assert [each.is_ended for each in hooks] == [True, True]
    assert hooks[0].got[0] is None and hooks[1].got[0] == [None]


def test_operations_of_one_run_share_a_batch(tmp_path):
    # The values of TensorFlow 1.15.5.
    hooks = []

    def hooks_of(train_a, train_b):
        hooks[:] = [Trains({"b": train_b, "loss": "of_a:0", "a": train_a}, 2)]
        return hooks

    model_fn = model_fn_of(hooks_of, is_ordered=True)
    program = estimator(model_fn, tmp_path, use_tpu=False)
    program.train(input_fn(), steps=4)
    a, b = [0.26781321, 0.37019581], [-0.10256578, -0.05583721]
    assert_same(trained_values(program), {A: a, B: b, "global_step": 4})
    first = np.mean((X[:4] * 0.5 - 1.5) ** 2)
    assert hooks[0].got[0] == {"b": None, "loss": pytest.approx(first), "a": None}


class Fails(Trains):
    """Fails in its third run."""

    def before_run(self, run_context):
        super().before_run(run_context)
        if len(self.got) == 3:
            raise ZeroDivisionError("of a hook")


def test_training_continues_after_an_error_of_a_hook(tmp_path):
    def train(folder, kind):
        model_fn = model_fn_of(
            lambda train_a, train_b: [kind(train_a), Trains(train_b)]
        )
        settings = {"use_tpu": False, "config": {"save_checkpoints_steps": 1}}
        program = estimator(model_fn, folder, **settings)
        program.train(input_fn(), max_steps=4)
        return values_of(program)

    with pytest.raises(ZeroDivisionError, match="of a hook"):
        train(tmp_path / "apart", Fails)
    assert kte.load_variable(tmp_path / "apart", "global_step") == 2
    continued = train(tmp_path / "apart", Trains)
    assert_same(continued, train(tmp_path / "at_once", Trains))


@pytest.mark.parametrize("iterations", [1, 3])
def test_several_devices_and_steps_of_a_loop(iterations, tmp_path):
    hooks_of, hooks = in_turn(2)
    settings = {"use_tpu": True, "iterations": iterations}
    program = estimator(model_fn_of(hooks_of), tmp_path, **settings)
    program.train(input_fn(size=16), steps=3)
    assert [len(each.got) for each in hooks] == [6 // iterations, 3 // iterations]
    if iterations == 1:
        one = estimator(model_fn_of(in_turn(2)[0]), tmp_path / "one", use_tpu=False)
        one.train(input_fn(size=16), steps=3)
        assert_same(trained_values(program), trained_values(one))


def test_hook_may_train_after_a_run_and_read_the_result(tmp_path):
    class After(tf.train.SessionRunHook):
        def __init__(self, operation):
            self.nested = {1: [operation], "key": None}
            self.seen = []

        def after_create_session(self, session, coord):
            self.variable = tf.global_variables()[1]
            self.train_on(session)

        def after_run(self, run_context, run_values):
            self.train_on(run_context.session)

        def train_on(self, session):
            session.run(self.nested[1])
            self.seen.append(float(session.run(self.variable)[0]))

        def end(self, session):
            self.train_on(session)

    hooks = []

    def hooks_of(train_a, train_b):
        hooks[:] = [After(train_a)]
        return hooks

    program = estimator(model_fn_of(hooks_of), tmp_path, use_tpu=False)
    program.train(input_fn(), steps=2)
    # Training with the same batches: all except those of the two runs.
    other = estimator(model_fn_of(in_turn(1)[0]), tmp_path / "other", use_tpu=False)
    other.train(input_fn(), steps=1)
    assert hooks[0].seen[0] == pytest.approx(trained_values(other)[A][0])
    assert len({*hooks[0].seen}) == 4


def test_hook_may_count_steps(tmp_path):
    class Counts(Trains):
        def begin(self):
            step = tf.train.get_global_step()
            with tf.control_dependencies([self.operations]):
                self.operations = step.assign_add(1)

    hooks = []

    def hooks_of(train_a, train_b):
        hooks[:] = [Counts(train_a)]
        return hooks

    program = estimator(model_fn_of(hooks_of), tmp_path, use_tpu=False)
    program.train(input_fn(), max_steps=6)
    # Each loop counts two steps.
    assert [*map(int, hooks[0].got)] == [1, 3, 5]
    assert trained_values(program)["global_step"] == 6


def test_random_operations_differ_in_each_run(tmp_path):
    hooks = []

    def model_fn(features, labels, mode, params):
        a = tf.get_variable(A, [])
        noise = tf.random_uniform([])
        assign = a.assign(noise + 0 * tf.reduce_sum(features))
        step = tf.train.get_or_create_global_step()
        hooks[:] = [Trains(assign, 2)]
        return kte.tf1.TPUEstimatorSpec(
            mode, loss=noise, train_op=step.assign_add(1), training_hooks=hooks
        )

    def drawn(folder):
        estimator(model_fn, folder, use_tpu=False, seed=1).train(input_fn(), steps=3)
        return [float(value) for value in hooks[0].got]

    values = drawn(tmp_path / "first")
    assert len({*values}) == 6
    assert drawn(tmp_path / "second") == values


def test_batch_of_another_shape(tmp_path):
    def uneven(params):
        yield from (X[:4], X[4:7], X[7:11], X[11:14], X[14:17], X[17:21])

    program = estimator(model_fn_of(in_turn(1)[0]), tmp_path, use_tpu=False)
    program.train(uneven, steps=2)
    assert_same(trained_values(program), UNEVEN)


def test_operations_that_are_not_known_are_refused(tmp_path):
    class Own(tf.train.SessionRunHook):
        def before_run(self, run_context):
            run_context.session.run(STORED[0])

    def hooks_of(train_a, train_b):
        STORED[:] = [train_a]
        return [Own()]

    stored_outside = estimator(model_fn_of(hooks_of), tmp_path, use_tpu=False)
    with pytest.raises(ValueError, match=r"Store them in an\s+attribute of the hook"):
        stored_outside.train(input_fn(), steps=1)


def test_only_training_runs_train_operations(tmp_path):
    program = estimator(model_fn_of(lambda *of: []), tmp_path, use_tpu=False)
    program.train(input_fn(), steps=1)

    class Own(tf.train.SessionRunHook):
        def begin(self):
            mean = tf.get_default_graph().get_tensor_by_name("of_a:0")
            self.assign = tf.global_variables()[1].assign([mean, mean])

        def after_run(self, run_context, run_values):
            run_context.session.run(self.assign)

    with pytest.raises(RuntimeError, match="Only hooks of `train` may run operations"):
        program.evaluate(input_fn(), steps=1, hooks=[Own()])
