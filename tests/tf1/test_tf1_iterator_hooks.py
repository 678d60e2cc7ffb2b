"""Tests hooks that initialize the iterators of `input_fn`."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import estimator

X = np.arange(32, dtype="float32").reshape(32, 1) / 16
# TensorFlow 1.15 printed these numbers for the same script.
WEIGHT, LOSS, MEAN, SUM = 1.0257231, 1.2069126, 0.9936693, 31.797415


class Initializes(tf.train.SessionRunHook):
    """A hook that calls a function of the session, which `input_fn` sets."""

    def __init__(self):
        self.calls = 0

    def after_create_session(self, session, coord):
        self.calls += 1
        self.initialize(session)


class ReadsAlso(Initializes):
    """Such a hook, which also needs the model."""

    def begin(self):
        self.step = tf.train.get_global_step()

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self.read = session.run(self.step)


class Other(tf.train.SessionRunHook):
    """A hook with another purpose."""

    def __init__(self):
        self.sessions = []

    def after_create_session(self, session, coord):
        self.sessions.append(session)


def linear(features, labels, mode, params):
    """A linear model with one weight."""
    w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    y = features * w
    if mode == kte.ModeKeys.PREDICT:
        return kte.tf1.TPUEstimatorSpec(mode, predictions={"y": y})
    loss = tf.reduce_mean((y - labels) ** 2)
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    if params["use_tpu"]:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    metrics = (lambda y: {"mean": tf.metrics.mean(y)}, [y])
    return kte.tf1.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metrics=metrics
    )


def fed_iterator(hook, mode, array, batch_size=16):
    """The next batch of an array that a hook feeds."""
    fed = tf.placeholder(tf.float32, array.shape)
    data = tf.data.Dataset.from_tensor_slices(fed)
    if mode == kte.ModeKeys.TRAIN:
        data = data.repeat()
    data = data.batch(batch_size, drop_remainder=True)
    iterator = tf.data.make_initializable_iterator(data)
    hook.initialize = lambda session: session.run(
        iterator.initializer, feed_dict={fed: array}
    )
    return iterator.get_next()


def input_of(hook):
    """An `input_fn` with one iterator."""

    def input_fn(params, mode):
        x = fed_iterator(hook, mode, X)
        return x, 2 * x

    return input_fn


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("kind", [Initializes, ReadsAlso])
def test_results_are_those_of_the_original(tmp_path, kind, use_tpu):
    made = estimator(linear, tmp_path, use_tpu=use_tpu)
    hook, other = kind(), Other()
    train_input = input_of(hook)
    made.train(train_input, hooks=[hook, other], steps=3)
    np.testing.assert_allclose(made.get_variable_value("w"), WEIGHT, rtol=1e-6)
    result = made.evaluate(train_input, steps=2, hooks=[hook, other])
    np.testing.assert_allclose(result["loss"], LOSS, rtol=1e-5)
    np.testing.assert_allclose(result["mean"], MEAN, rtol=1e-6)
    rows = [float(r["y"][0]) for r in made.predict(train_input, hooks=[hook, other])]
    assert len(rows) == len(X)
    np.testing.assert_allclose(np.sum(rows), SUM, rtol=1e-6)
    if kind is ReadsAlso:
        assert hook.read == 3
        # Its early call of each mode failed when it needed the model.
        assert hook.calls == 6
    else:
        assert hook.calls == 3
    # The iterator was initialized without this hook.
    assert len(other.sessions) == 3


def test_two_hooks_initialize_two_iterators(tmp_path):
    hooks = Initializes(), Initializes()

    def input_fn(params, mode):
        scales = zip(hooks, (1, 2), strict=True)
        return tuple(fed_iterator(hook, mode, k * X) for hook, k in scales)

    made = estimator(linear, tmp_path)
    made.train(input_fn, hooks=hooks, steps=3)
    np.testing.assert_allclose(made.get_variable_value("w"), WEIGHT, rtol=1e-6)
    assert [hook.calls for hook in hooks] == [1, 1]


def test_iterator_that_is_never_read_needs_no_value(tmp_path):
    def input_fn(params, mode):
        data = tf.data.Dataset.from_tensors(X).repeat()
        unused = tf.data.make_initializable_iterator(data)
        used = tf.data.make_one_shot_iterator(data)
        is_first = tf.random_uniform([]) > 2
        x = tf.cond(is_first, unused.get_next, used.get_next)
        x.set_shape(X.shape)
        return x, 2 * x

    made = estimator(linear, tmp_path)
    made.train(input_fn, hooks=[Other()], steps=1)


def test_threads_of_an_early_call_are_stopped(tmp_path):
    class Keeps(Initializes):
        def after_create_session(self, session, coord):
            super().after_create_session(session, coord)
            self.coordinator = coord
            assert not coord.should_stop()

    hook = Keeps()
    made = estimator(linear, tmp_path)
    made.train(input_of(hook), hooks=[hook], steps=1)
    assert hook.coordinator.should_stop()


def test_operations_run_with_the_session_as_argument(tmp_path):
    hook = Initializes()

    def input_fn(params, mode):
        data = tf.data.Dataset.from_tensors((X, 2 * X)).repeat()
        iterator = tf.data.make_initializable_iterator(data)
        hook.initialize = lambda session: iterator.initializer.run(session=session)
        return iterator.get_next()

    made = estimator(linear, tmp_path)
    made.train(input_fn, hooks=[hook], steps=1)
    assert hook.calls == 1


def test_hook_that_needs_the_model_first_is_an_error(tmp_path):
    class ReadsFirst(Initializes):
        def begin(self):
            self.step = tf.train.get_global_step()

        def after_create_session(self, session, coord):
            session.run(self.step)
            super().after_create_session(session, coord)

    hook = ReadsFirst()
    made = estimator(linear, tmp_path)
    with pytest.raises(ValueError, match="must be initialized before") as raised:
        made.train(input_of(hook), hooks=[hook], steps=1)
    assert "ReadsFirst" in str(raised.value.__cause__.__notes__)


def test_error_of_an_initializer_is_the_cause(tmp_path):
    hook = Initializes()

    def input_fn(params, mode):
        x = fed_iterator(hook, mode, X)
        hook.initialize = lambda session: 1 / 0
        return x, x

    made = estimator(linear, tmp_path)
    with pytest.raises(ValueError, match="make_one_shot_iterator") as raised:
        made.train(input_fn, hooks=[hook], steps=1)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
