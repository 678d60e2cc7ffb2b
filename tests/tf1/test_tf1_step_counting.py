"""Compares scripts whose runs do not count one step with a session."""

import keras_tpu_estimator as kte  # isort: skip

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers import estimator_of
from tf1_programs import (
    assert_same,
    fed,
    plain_session,
    summaries_in,
    values_of,
    variable,
)

BATCH = 8
MICRO_STEPS = 3


def micro_batches(count=200, seed=0):
    """Different batches, so that skipped or repeated input is detected."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, BATCH, 3)).astype("float32")
    return [(each, each.sum(1, keepdims=True)) for each in x]


def accumulated(loss, step, use_tpu):
    """Applies the sum of the gradients in every third run, and counts it."""
    (weight,) = tf.trainable_variables()
    local = tf.get_variable(
        "local", [], tf.int32, tf.zeros_initializer(), trainable=False
    )
    total = variable("total", *weight.shape, trainable=False)
    (gradient,) = tf.gradients(loss, [weight])
    if use_tpu:
        gradient = tf.tpu.cross_replica_sum(gradient)
    optimizer = tf.train.GradientDescentOptimizer(0.01)
    with tf.control_dependencies([tf.assign_add(total, gradient)]):
        count = tf.assign_add(local, 1)

    def apply():
        applied = optimizer.apply_gradients([(total.read_value(), weight)], step)
        with tf.control_dependencies([applied]):
            return tf.group(tf.assign(total, tf.zeros_like(total)))

    with tf.control_dependencies([count]):
        return tf.cond(tf.equal(count % MICRO_STEPS, 0), apply, lambda: tf.no_op())


def counted_twice(loss, step, use_tpu):
    """Two optimizers that count."""
    optimizer = tf.train.GradientDescentOptimizer(0.01)
    if use_tpu:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    first = optimizer.minimize(loss, step)
    with tf.control_dependencies([first]):
        return tf.assign_add(step, 1)


def counted_by_batch(loss, step, use_tpu):
    """A step that counts examples."""
    optimizer = tf.train.GradientDescentOptimizer(0.01)
    if use_tpu:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    with tf.control_dependencies([optimizer.minimize(loss)]):
        return tf.assign_add(step, BATCH)


def counted_if_finite(loss, step, use_tpu):
    """Loss scaling that skips one of three steps."""
    del use_tpu
    (weight,) = tf.trainable_variables()
    tries = tf.get_variable(
        "tries", [], tf.int32, tf.zeros_initializer(), trainable=False
    )
    optimizer = tf.train.GradientDescentOptimizer(0.01)
    (gradient,) = tf.gradients(loss, [weight])
    scaled = gradient * tf.where(tf.equal(tries % 3, 1), np.inf, 1.0)
    is_finite = tf.reduce_all(tf.is_finite(scaled))
    applied = tf.cond(
        is_finite,
        lambda: tf.group(optimizer.apply_gradients([(scaled, weight)], step)),
        lambda: tf.no_op(),
    )
    with tf.control_dependencies([applied]):
        return tf.group(tf.assign_add(tries, 1))


KINDS = {
    each.__name__: each
    for each in (
        accumulated,
        counted_twice,
        counted_by_batch,
        counted_if_finite,
    )
}


def model_fn_of(minimize):
    """A linear model."""

    def model_fn(features, labels, mode, params):
        weight = variable("weight", 3, 1)
        loss = tf.reduce_mean(tf.square(tf.matmul(features, weight) - labels))
        tf.summary.scalar("own_loss", loss)
        if mode != kte.ModeKeys.TRAIN:
            return kte.tf1.TPUEstimatorSpec(mode, loss=loss)
        step = tf.train.get_or_create_global_step()
        train_op = minimize(loss, step, params["use_tpu"])
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def run_until(model_fn, data, last_step):
    """The variables of a session that stops like the original."""
    with tf.Graph().as_default(), plain_session() as session:
        step = tf.train.create_global_step()
        fed_to = [tf.placeholder(a.dtype, a.shape) for a in data[0]]
        spec = model_fn(*fed_to, kte.ModeKeys.TRAIN, {"use_tpu": False})
        session.run(tf.global_variables_initializer())
        for arrays in data:
            session.run(spec.train_op, dict(zip(fed_to, arrays, strict=True)))
            if session.run(step) >= last_step:
                break
        names = {v.op.name: v for v in tf.global_variables()}
        return session.run(names)


def made(model_fn, model_dir, **settings):
    """An estimator of batches of eight."""
    return estimator_of(kte.tf1.model_fn(model_fn), model_dir, batch=BATCH, **settings)


@pytest.mark.rows(8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("iterations", [None, 1, 5])
def test_training_stops_at_the_counted_step(tmp_path, kind, iterations):
    model_fn, data = model_fn_of(KINDS[kind]), micro_batches()
    settings = {} if iterations is None else {"iterations": iterations}
    expected = run_until(model_fn, data, last_step=4)
    estimator = made(model_fn, tmp_path, **settings)
    estimator.train(lambda params: iter(data), steps=4)
    assert_same(values_of(estimator), expected)
    saved = int(expected["global_step"])
    assert estimator.latest_checkpoint().endswith(f"-{saved}")


@pytest.mark.parametrize("kind", [accumulated, counted_twice])
def test_training_is_complete_only_at_max_steps(tmp_path, kind):
    model_fn, data = model_fn_of(kind), micro_batches()
    expected = run_until(model_fn, data, last_step=6)
    for _ in range(3):
        made(model_fn, tmp_path).train(lambda params: iter(data), max_steps=6)
        assert_same(values_of(made(model_fn, tmp_path)), expected)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_one_estimator_trains_and_evaluates_again(tmp_path, use_tpu):
    model_fn, data = model_fn_of(accumulated), micro_batches()
    expected = run_until(model_fn, data, last_step=2)
    estimator = made(model_fn, tmp_path, use_tpu=use_tpu)
    for rest in (data, data[MICRO_STEPS:]):
        estimator.train(fed(rest), steps=1)
        estimator.evaluate(fed(rest[:2]))
    if not use_tpu:
        assert_same(values_of(estimator), expected)
    assert int(estimator.get_variable_value("local")) == 2 * MICRO_STEPS


def test_evaluations_during_training(tmp_path):
    model_fn, data = model_fn_of(accumulated), micro_batches()
    config = {"save_checkpoints_steps": 2}
    estimator = made(model_fn, tmp_path, config=config)
    result, _ = kte.train_and_evaluate(
        estimator,
        kte.TrainSpec(lambda params: iter(data), max_steps=4),
        kte.EvalSpec(lambda params: iter(data[:2]), steps=None, throttle_secs=0),
    )
    assert result["global_step"] == 4
    assert int(estimator.get_variable_value("local")) == 4 * MICRO_STEPS


@pytest.mark.parametrize("iterations, runs", [(1, 12), (4, 12), (100, 12)])
def test_loops_on_several_cores_have_the_remaining_steps(tmp_path, iterations, runs):
    model_fn, data = model_fn_of(accumulated), micro_batches()
    estimator = made(model_fn, tmp_path, use_tpu=True, iterations=iterations)
    estimator.train(lambda params: iter(data), steps=4)
    assert int(estimator.get_variable_value("local")) == runs
    assert int(estimator.get_variable_value("global_step")) == 4


def test_tpu_overshoots_by_a_loop_like_the_original(tmp_path):
    # The first loop of four runs counts eight steps; two more runs count four.
    model_fn, data = model_fn_of(counted_twice), micro_batches()
    estimator = made(model_fn, tmp_path, use_tpu=True, iterations=4)
    estimator.train(lambda params: iter(data), steps=10)
    assert int(estimator.get_variable_value("global_step")) == 12


class Seen(kte.hooks.SessionRunHook):
    """Records the global step after each run."""

    def begin(self):
        self.steps = []

    def after_run(self, run_context, run_values):
        self.steps.append(int(run_context.session.run("global_step")))


def test_hooks_and_checkpoints_follow_the_step(tmp_path):
    seen = Seen()
    estimator = made(
        model_fn_of(accumulated),
        tmp_path,
        save_summary_steps=2,
        config={"save_checkpoints_steps": 2, "keep_checkpoint_max": None},
    )
    data = micro_batches()
    estimator.train(lambda params: iter(data), hooks=[seen], steps=4)
    assert seen.steps == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    names = [re.match(r"model\.ckpt-(\d+)", p.name) for p in tmp_path.iterdir()]
    assert {int(each[1]) for each in names if each} == {0, 2, 4}
    own = [s for tag, s in summaries_in(tmp_path) if tag == "own_loss"]
    assert sorted(own) == [0, 2, 4]


@pytest.mark.parametrize("stop", [1, 2])
def test_interrupted_training_continues_its_input(tmp_path, stop):
    """Training that stops after a checkpoint continues with the next batch."""
    model_fn, data = model_fn_of(accumulated), micro_batches()
    expected = run_until(model_fn, data, last_step=4)

    class Killed(Exception):
        """An error that interrupts training."""

    class Kill(Seen):
        """Raises an error several runs after a checkpoint."""

        def after_run(self, run_context, run_values):
            super().after_run(run_context, run_values)
            if len(self.steps) == stop * MICRO_STEPS + 2:
                raise Killed

    config = {"save_checkpoints_steps": 1}
    with pytest.raises(Killed):
        made(model_fn, tmp_path, config=config).train(
            lambda params: iter(data), hooks=[Kill()], max_steps=4
        )
    estimator = made(model_fn, tmp_path, config=config)
    assert estimator.latest_checkpoint().endswith(f"-{stop}")
    estimator.train(lambda params: iter(data), max_steps=4)
    assert_same(values_of(estimator), expected)


def test_runs_without_a_step_are_not_saved(tmp_path):
    """The input ends between steps, so the next call starts at the checkpoint."""
    model_fn, data = model_fn_of(accumulated), micro_batches()
    estimator = made(model_fn, tmp_path)
    estimator.train(lambda params: iter(data[:7]))
    in_memory = values_of(estimator)
    again = made(model_fn, tmp_path)
    assert_same(values_of(again), in_memory)
    assert int(in_memory["global_step"]) == 2


def test_nan_error_names_the_counted_step(tmp_path):
    data = micro_batches()
    data[7] = (np.full_like(data[7][0], np.nan), data[7][1])
    estimator = made(model_fn_of(accumulated), tmp_path, iterations=2)
    with pytest.raises(kte.hooks.NanLossDuringTrainingError, match="NaN since step 2"):
        estimator.train(lambda params: iter(data), steps=4)


def test_host_call_gets_each_counted_step(tmp_path):
    calls = []

    def note(step):
        calls.append(int(step[0]))
        return step

    def model_fn(features, labels, mode, params):
        spec = model_fn_of(accumulated)(features, labels, mode, params)
        if mode != kte.ModeKeys.TRAIN:
            return spec

        def host_fn(step):
            return tf.numpy_function(note, [step], tf.int64)

        step = tf.reshape(tf.train.get_global_step(), [1])
        return spec._replace(host_call=(host_fn, [step]))

    data = micro_batches()
    estimator = made(model_fn, tmp_path, use_tpu=True, iterations=4)
    estimator.train(lambda params: iter(data), steps=2)
    assert len(calls) == 2 * MICRO_STEPS
    assert sorted(calls) == calls and set(calls) <= {0, 1, 2}


def by_optimizer(loss, step, use_tpu):
    return tf.train.AdamOptimizer(0.01).minimize(loss, step)


def by_clipped(loss, step, use_tpu):
    optimizer = tf.train.MomentumOptimizer(0.01, 0.9)
    pairs = optimizer.compute_gradients(loss)
    return optimizer.apply_gradients(pairs, global_step=step)


def by_assign(loss, step, use_tpu):
    new = step + 1
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
    return tf.group(train, [step.assign(new)])


def by_assign_reversed(loss, step, use_tpu):
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
    return tf.group(train, tf.assign(step, tf.add(tf.cast(1, tf.int64), step)))


def by_assign_add(loss, step, use_tpu):
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
    with tf.control_dependencies([train]):
        return tf.assign_add(step, tf.constant(1, tf.int64))


def by_decayed_rate(loss, step, use_tpu):
    rate = tf.train.exponential_decay(0.01, step, 10, 0.9)
    return tf.train.GradientDescentOptimizer(rate).minimize(loss, step)


def by_average(loss, step, use_tpu):
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, step)
    average = tf.train.ExponentialMovingAverage(0.9, step)
    with tf.control_dependencies([train]):
        return average.apply(tf.trainable_variables())


def by_two_in_assign(loss, step, use_tpu):
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
    return tf.group(train, step.assign(step + 2))


def by_both(loss, step, use_tpu):
    """Counts steps like BERT's code with other optimizers."""
    new = step + 1
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, step)
    return tf.group(train, [step.assign(new)])


@pytest.mark.parametrize(
    "minimize, expected",
    [
        *((each, True) for each in (by_optimizer, by_clipped, by_assign)),
        *((each, True) for each in (by_assign_reversed, by_assign_add)),
        *((each, True) for each in (by_decayed_rate, by_average)),
        *((each, False) for each in (by_two_in_assign, by_both)),
        *((each, False) for each in KINDS.values()),
    ],
)
def test_usual_programs_are_planned_ahead(minimize, expected):
    data = micro_batches(1)
    model_fn = kte.tf1.model_fn(model_fn_of(minimize))
    estimator = estimator_of(model_fn, None, batch=BATCH)
    step = estimator._context.runtime.prepare(kte.ModeKeys.TRAIN, *data[0])
    assert step.additions.counts_once is expected


def test_random_ops_differ_in_uncounted_runs(tmp_path):
    """Dropout has a new mask in each micro-batch, also after a restart."""

    def model_fn(features, labels, mode, params):
        spec = model_fn_of(accumulated)(features, labels, mode, params)
        if mode != kte.ModeKeys.TRAIN:
            return spec
        drawn = tf.get_variable(
            "drawn", [12], initializer=tf.zeros_initializer(), trainable=False
        )
        runs = tf.get_variable(
            "runs", [], tf.int32, tf.zeros_initializer(), trainable=False
        )
        row = tf.one_hot(runs.read_value(), 12) * tf.random_uniform([])
        with tf.control_dependencies([tf.assign_add(drawn, row)]):
            count = tf.assign_add(runs, 1)
        return spec._replace(train_op=tf.group(spec.train_op, count))

    data = micro_batches()
    straight = made(model_fn, tmp_path / "straight")
    straight.train(lambda params: iter(data), steps=4)
    drawn = straight.get_variable_value("drawn")
    assert len({*drawn.tolist()}) == 12
    for steps in (1, 3):
        made(model_fn, tmp_path / "again").train(lambda params: iter(data), steps=steps)
    again = made(model_fn, tmp_path / "again").get_variable_value("drawn")
    np.testing.assert_array_equal(again, drawn)
