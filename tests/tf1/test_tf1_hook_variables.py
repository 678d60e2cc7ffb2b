"""Tests variables that hooks make, against TensorFlow 1.15."""

import keras_tpu_estimator as kte  # isort: skip

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.training import evaluation
from tf1_programs import estimator, fed

X = np.ones((16, 1), "float32")


def model_fn(features, labels, mode, params):
    w = tf.get_variable("w", [1], initializer=tf.ones_initializer)
    outputs = features * w
    if mode == kte.ModeKeys.PREDICT:
        return kte.tf1.TPUEstimatorSpec(mode, predictions={"y": outputs})
    loss = tf.reduce_mean(outputs)
    step = tf.train.get_or_create_global_step()
    train_op = tf.group(w.assign(2 * w), step.assign_add(1))
    return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def made(tmp_path, **settings):
    return estimator(model_fn, tmp_path, **{"iterations": 1} | settings)


class Counting(tf.train.SessionRunHook):
    """Counts runs in its own variable, and fetches it."""

    def __init__(self):
        self.fetched, self.read = [], []

    def begin(self):
        self.runs = tf.get_variable(
            "runs", [], tf.int64, tf.zeros_initializer(), trainable=False
        )
        self.stop = tf.get_variable("stop", [], tf.bool, tf.constant_initializer(False))
        self.here = tf.get_variable(
            "here",
            [],
            initializer=tf.zeros_initializer(),
            collections=[tf.GraphKeys.LOCAL_VARIABLES],
        )
        self.more = tf.group(self.runs.assign_add(1), self.here.assign_add(0.5))

    def before_run(self, run_context):
        return tf.train.SessionRunArgs([self.runs, self.stop])

    def after_run(self, run_context, run_values):
        runs, stop = run_values.results
        assert not stop
        self.fetched.append(int(runs))
        run_context.session.run(self.more)
        self.read.append([*map(float, run_context.session.run([self.runs, self.here]))])


@pytest.mark.parametrize("cores", [False, True])
def test_variable_of_a_hook_is_saved_and_resumed(tmp_path, cores):
    hook = Counting()
    program = made(tmp_path, use_tpu=cores)
    program.train(fed([X, X]), hooks=[hook], steps=2)
    assert hook.fetched == [0, 1]
    assert hook.read == [[1, 0.5], [2, 1.0]]
    names = ["global_step", "runs", "stop", "w"]
    assert sorted(program.get_variable_names()) == names
    saved = kte.load_variable(tmp_path, "runs")
    assert saved == 2 and saved.dtype == np.int64
    # First the same graph, then the graph of another process.
    again = Counting()
    program.train(fed([X]), hooks=[again], steps=1)
    assert again.fetched == [2] and again.read == [[3, 0.5]]
    other = Counting()
    made(tmp_path, use_tpu=cores).train(fed([X]), hooks=[other], steps=1)
    assert other.fetched == [3] and other.read == [[4, 0.5]]


def test_checkpoint_may_lack_a_hooks_variable(tmp_path):
    made(tmp_path).train(fed([X]), steps=1)
    hook = Counting()
    made(tmp_path).train(fed([X]), hooks=[hook], steps=1)
    assert hook.read == [[1, 0.5]]


def test_hooks_of_other_calls_read_a_hooks_variable(tmp_path):
    program = made(tmp_path)
    program.train(fed([X, X, X]), hooks=[Counting()], steps=3)
    evaluated, predicted = Counting(), Counting()
    program.evaluate(fed([X]), hooks=[evaluated])
    [*program.predict(fed([X]), hooks=[predicted])]
    assert evaluated.fetched == predicted.fetched == [3]
    assert evaluated.read == predicted.read == [[4, 0.5]]
    assert kte.load_variable(tmp_path, "runs") == 3


def test_eval_step_counts_batches(tmp_path):
    class Own(tf.train.SessionRunHook):
        def __init__(self):
            self.got = []

        def before_run(self, run_context):
            step = evaluation._get_or_create_eval_step()
            return tf.train.SessionRunArgs(step)

        def after_run(self, run_context, run_values):
            step = evaluation._get_or_create_eval_step()
            read = run_context.session.run(step)
            self.got.append((int(run_values.results), int(read)))

    hook = Own()
    program = made(tmp_path)
    program.train(fed([X]), steps=1)
    for _ in range(2):
        program.evaluate(fed([X, X, X]), hooks=[hook])
    assert hook.got == [(1, 1), (2, 2), (3, 3)] * 2
    assert "eval_step" not in program.get_variable_names()


def test_tensorflow_saver_saves(tmp_path):
    class Own(tf.train.SessionRunHook):
        def begin(self):
            self.saver = tf.train.Saver()

        def after_run(self, run_context, run_values):
            step = run_context.session.run(tf.train.get_global_step())
            self.saver.save(run_context.session, str(tmp_path / "own" / "m"), step)

    (tmp_path / "own").mkdir()
    program = made(tmp_path / "model")
    program.train(fed([X, X]), hooks=[Own()], steps=2)
    prefix = tf.train.latest_checkpoint(str(tmp_path / "own"))
    assert prefix.endswith("m-2")
    reader = tf.train.load_checkpoint(prefix)
    assert reader.get_tensor("w") == [4.0]
    assert reader.get_tensor("global_step") == 2


def test_value_is_loaded_into_a_variable(tmp_path):
    class Own(tf.train.SessionRunHook):
        def begin(self):
            self.w = tf.global_variables()[1]

        def after_run(self, run_context, run_values):
            self.w.load([100.0], session=run_context.session)

    made(tmp_path).train(fed([X]), hooks=[Own()], steps=2)
    assert kte.load_variable(tmp_path, "w") == [100.0]


def test_variable_made_too_late_is_an_error(tmp_path):
    class Own(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            late = tf.get_variable("late", [])
            run_context.session.run(late)

    with pytest.raises(ValueError, match="make its variables in `begin`"):
        made(tmp_path).train(fed([X]), hooks=[Own()], steps=1)


class Timing(tf.train.CheckpointSaverListener):
    """Makes variables and operations in `begin`, as NASBench's listener does."""

    def begin(self):
        self.saves = tf.get_variable(
            "saves", [], tf.int32, tf.zeros_initializer(), trainable=False
        )
        self.more = self.saves.assign(self.saves + 1)

    def before_save(self, session, global_step_value):
        session.run(self.more)


def test_listener_makes_a_variable_in_begin(tmp_path):
    # As in TensorFlow 1.15.5, which calls listeners again at step 2.
    program = made(tmp_path)
    for steps, saves in ((2, 2), (1, 4)):
        batches = fed([X] * steps)
        program.train(batches, steps=steps, saving_listeners=[Timing()])
        assert kte.load_variable(tmp_path, "saves") == saves


class Assigning(tf.train.SessionRunHook):
    """Fetches operations that assign its variables, as NASBench's hook does."""

    def __init__(self):
        self.got = []

    def begin(self):
        made = functools.partial(
            tf.get_variable, initializer=tf.zeros_initializer(), trainable=False
        )
        self.runs, self.time = made("runs", [], tf.int32), made("time", [])
        now = tf.cond(
            tf.equal(self.runs, 0), lambda: self.time.assign(5.0), lambda: self.time
        )
        self.last = tf.reduce_sum(now)
        with tf.control_dependencies([self.last]):
            self.more = self.runs.assign_add(1)

    def before_run(self, run_context):
        return tf.train.SessionRunArgs([self.more, self.last])

    def after_run(self, run_context, run_values):
        self.got.append(tuple(map(float, run_values.results)))


def test_operations_that_assign_run_with_each_step(tmp_path):
    # The values of TensorFlow 1.15.5.
    hook = Assigning()
    program = made(tmp_path)
    program.train(fed([X, X]), hooks=[hook], steps=2)
    program.train(fed([X]), hooks=[hook], steps=1)
    assert hook.got == [(1, 5), (2, 5), (3, 5)]
    assert kte.load_variable(tmp_path, "runs") == 3


class CountingSteps(tf.train.SessionRunHook):
    """Fetches an operation that increments the global step."""

    def begin(self):
        self.more = tf.assign_add(tf.train.get_global_step(), 1)

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.more)


def test_fetched_increment_of_the_global_step_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="Hooks must fetch tensors"):
        made(tmp_path).train(fed([X]), hooks=[CountingSteps()], steps=1)


MILLISECONDS = 1_795_905_834_397
ALMOST_THIRD = np.float64(1) / 3


class Wide(tf.train.SessionRunHook):
    """Holds 64-bit numbers, as NASBench's hook holds a time in milliseconds."""

    def begin(self):
        made = functools.partial(tf.get_variable, trainable=False)
        zeros = tf.zeros_initializer()
        self.time = made("time", [], tf.int64, tf.constant_initializer(-1))
        self.ratio = made("ratio", [2], tf.float64, zeros)
        self.more = tf.group(
            self.time.assign(tf.maximum(self.time, np.int64(MILLISECONDS)) + 1),
            self.ratio.assign(self.ratio + ALMOST_THIRD),
        )
        self.seen = []

    def before_run(self, run_context):
        return tf.train.SessionRunArgs([self.time, self.ratio])

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results)
        run_context.session.run(self.more)


def wide_model_fn(features, labels, mode, params):
    spec = model_fn(features, labels, mode, params)
    Wide().begin()  # Of which only hooks use the variables.
    return spec


@pytest.mark.parametrize("maker", [model_fn, wide_model_fn])
@pytest.mark.parametrize("cores", [False, True])
@pytest.mark.parametrize("layout", ["tensorflow", "hdf5", "orbax"])
def test_wide_numbers_of_hooks_stay_on_the_host(layout, cores, maker, tmp_path):
    settings = {"use_tpu": cores, "config": {"checkpoint_format": layout}}
    made = functools.partial(estimator, maker, iterations=1)
    program = made(tmp_path, **settings)
    first, second = Wide(), Wide()
    program.train(fed([X, X]), hooks=[first], steps=2)
    program.train(fed([X]), hooks=[second], steps=1)
    other = Wide()
    made(tmp_path, **settings).train(fed([X]), hooks=[other], steps=1)
    times = [int(time) for hook in (first, second, other) for time, _ in hook.seen]
    assert times == [-1, *(MILLISECONDS + n for n in (1, 2, 3))]
    assert other.seen[0][1].tolist() == [ALMOST_THIRD * 3] * 2
    assert other.seen[0][0].dtype == np.int64
    saved = kte.load_variable(tmp_path, "time")
    assert saved == MILLISECONDS + 4 and saved.dtype == np.int64
    ratio = kte.load_variable(tmp_path, "ratio")
    assert ratio.dtype == np.float64 and ratio[0] == pytest.approx(4 / 3, abs=1e-15)
    evaluated = Wide()
    made(tmp_path, **settings).evaluate(fed([X]), hooks=[evaluated])
    assert int(evaluated.seen[0][0]) == MILLISECONDS + 4


class InBeforeRun(tf.train.SessionRunHook):
    """Assigns, in each run, variables that `wide_model_fn` makes."""

    def begin(self):
        self.wide = Wide()
        self.wide.begin()
        self.got = []

    def before_run(self, run_context):
        return tf.train.SessionRunArgs([self.wide.time.assign_add(MILLISECONDS)])

    def after_run(self, run_context, run_values):
        self.got += map(int, run_values.results)


def test_run_assigns_wide_variables_of_model_fn(tmp_path):
    # As in TensorFlow 1.15.5.
    hook = InBeforeRun()
    estimator(wide_model_fn, tmp_path, iterations=1).train(
        fed([X, X]), hooks=[hook], steps=2
    )
    assert hook.got == [MILLISECONDS - 1, 2 * MILLISECONDS - 1]


class Fetching(tf.train.SessionRunHook):
    """Fetches what `make` computes from a wide variable."""

    def __init__(self, make):
        self.make, self.got = make, []

    def begin(self):
        wide = Wide()
        wide.begin()
        self.value = self.make(wide.time)

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.value)

    def after_run(self, run_context, run_values):
        self.got.append(int(run_values.results))


@pytest.mark.parametrize("maker", [model_fn, wide_model_fn])
def test_hook_fetches_values_of_wide_variables(maker, tmp_path):
    hook = Fetching(lambda time: time + MILLISECONDS)
    estimator(maker, tmp_path, iterations=1).train(fed([X]), hooks=[hook], steps=1)
    assert hook.got == [MILLISECONDS - 1]


def test_wide_variable_in_a_tensor_of_the_step_is_an_error(tmp_path):
    def with_loss(time):
        loss = tf.get_default_graph().get_tensor_by_name("Mean:0")
        return tf.cast(time, "float32") * loss

    program = estimator(wide_model_fn, tmp_path, iterations=1)
    with pytest.raises(ValueError, match="because they stay on the host"):
        program.train(fed([X]), hooks=[Fetching(with_loss)], steps=1)


def reading_model_fn(features, labels, mode, params):
    runs = tf.get_variable(
        "runs", [], tf.int64, tf.constant_initializer(7), trainable=False
    )
    spec = model_fn(features, labels, mode, params)
    if mode == kte.ModeKeys.EVAL:
        return spec._replace(loss=spec.loss + tf.cast(runs, tf.float32))
    return spec


@pytest.mark.parametrize("cores", [False, True])
def test_wide_variable_moves_to_the_devices_when_a_mode_reads_it(cores, tmp_path):
    hook = Counting()
    program = estimator(reading_model_fn, tmp_path, iterations=1, use_tpu=cores)
    for runs in (8, 9):
        program.train(fed([X]), hooks=[hook], steps=1)
        loss = program.evaluate(fed([X]), steps=1)["loss"]
        assert loss == 2 ** (runs - 7) + runs
    assert hook.read == [[8, 0.5], [9, 0.5]]
    assert kte.load_variable(tmp_path, "runs").dtype == np.int64


class CountingBatches(tf.train.SessionRunHook):
    """Runs an operation on batches that also counts them in a wide variable."""

    def __init__(self, operation, runs):
        self.operation, self.runs = operation, runs
        self.got = []

    def before_run(self, run_context):
        run_context.session.run(self.operation)
        self.got.append(int(run_context.session.run(self.runs)))


def counting_model_fn(features, labels, mode, params):
    spec = model_fn(features, labels, mode, params)
    runs = tf.get_variable("runs", [], tf.int64, tf.zeros_initializer())
    w = tf.get_variable("sum", [], initializer=tf.zeros_initializer())
    operation = tf.group(w.assign_add(tf.reduce_mean(features)), runs.assign_add(1))
    return spec._replace(training_hooks=[CountingBatches(operation, runs)])


def test_wide_variable_counts_batches_of_a_hook(tmp_path):
    program = estimator(counting_model_fn, tmp_path, iterations=1)
    program.train(fed([X] * 6), steps=3)
    assert kte.load_variable(tmp_path, "runs") == 3
    assert kte.load_variable(tmp_path, "sum") == 3


class Restoring(tf.train.SessionRunHook):
    """Assigns the variables of a call when a session begins, as Mesh TensorFlow's."""

    def __init__(self, operation):
        self.operation = operation

    def after_create_session(self, session, coord):
        session.run(self.operation)


class Saving(tf.train.CheckpointSaverListener):
    """Assigns the model's variables before they are saved."""

    def __init__(self, operation):
        self.operation = operation

    def before_save(self, session, global_step_value):
        session.run(self.operation)


def sliced_model_fn(features, labels, mode, params):
    master = tf.get_variable("w", [3, 1], initializer=tf.constant_initializer(0.1))
    part = tf.get_variable("part", [3, 1], collections=[], trainable=False)
    hooks = [Restoring(tf.group(part.assign(master)))]
    outputs = tf.matmul(features, part)
    if mode == kte.ModeKeys.PREDICT:
        return kte.tf1.TPUEstimatorSpec(
            mode, predictions={"y": outputs}, prediction_hooks=hooks
        )
    loss = tf.reduce_mean((outputs - 1) ** 2)
    gradient = tf.gradients(loss, part)[0]
    train_op = tf.group(
        part.assign_sub(0.1 * gradient), tf.train.get_global_step().assign_add(1)
    )
    saver = tf.train.CheckpointSaverHook(
        params["dir"], save_steps=2, listeners=[Saving(tf.group(master.assign(part)))]
    )
    return kte.tf1.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        training_hooks=[*hooks, saver],
        evaluation_hooks=hooks,
    )


def test_variables_in_no_collection_belong_to_a_call(tmp_path):
    # The values of TensorFlow 1.15.5.
    ones = np.ones((16, 3), "float32")
    params = {"dir": str(tmp_path)}
    program = estimator(sliced_model_fn, tmp_path, iterations=1, params=params)
    program.train(fed([ones] * 3), steps=3)
    assert program.get_variable_names() == ["global_step", "w"]
    np.testing.assert_allclose(program.get_variable_value("w"), [[0.3184]] * 3, 1e-6)
    program = estimator(sliced_model_fn, tmp_path, iterations=1, params=params)
    program.train(fed([ones] * 2), steps=2)
    saved = program.get_variable_value("w")
    np.testing.assert_allclose(saved, [[0.330944]] * 3, 1e-6)
    result = program.evaluate(fed([ones]), steps=1)
    assert result["loss"] == pytest.approx((3 * 0.330944 - 1) ** 2, rel=1e-4)
    predicted = next(program.predict(fed([ones])))
    assert predicted["y"] == pytest.approx([3 * 0.330944], rel=1e-6)
