"""Tests that a TF1 `model_fn` may assert conditions that XLA cannot compute."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import estimator, fed, values_of

from keras_tpu_estimator.base.common.logs import warn_once

IDS = np.array([[1, 2, 2, 0], [3, 1, 0, 0], [1, 1, 1, 1], [2, 0, 0, 0]], np.int32)
LENGTHS = np.array([3, 2, 4, 1], np.int32)
DATA = [({"ids": IDS, "lengths": LENGTHS}, IDS % 2)] * 2


def unique(ids):
    """Asserts with a set operation, for which XLA has no kernel."""
    rows = tf.sets.size(tf.sets.intersection(ids, ids))
    return tf.debugging.assert_positive(rows, data=[tf.as_string(rows)])


def in_branch(ids):
    """Asserts in a branch whose value is used."""

    def checked():
        with tf.control_dependencies([unique(ids)]):
            return tf.constant(1.0)

    return tf.cond(tf.reduce_sum(ids) > 0, checked, lambda: tf.constant(2.0))


def only_in_branch(ids):
    """Asserts in a branch without a value."""
    check = tf.cond(tf.reduce_sum(ids) > 0, lambda: unique(ids), tf.no_op)
    with tf.control_dependencies([check]):
        return tf.constant(1.0)


def in_loop(ids):
    """Asserts in the body of a loop."""

    def body(number, total):
        with tf.control_dependencies([unique(ids)]):
            return [number + 1, total + 0.5]

    return tf.while_loop(lambda n, _: n < 2, body, [0, 0.0], maximum_iterations=2)[1]


def plain(ids):
    """Asserts with `tf.Assert`."""
    rows = tf.sets.size(tf.sets.intersection(ids, ids))
    with tf.control_dependencies([tf.Assert(tf.reduce_all(rows > 0), [rows])]):
        return tf.constant(1.0)


def counted(ids):
    """Asserts about a variable that the assertion itself changes."""
    count = tf.get_variable("runs", initializer=0.0, use_resource=True)
    with tf.control_dependencies([tf.debugging.assert_positive(count.assign_add(1.0))]):
        return tf.constant(1.0)


def factor(ids):
    """Returns 1 after assertions of all kinds."""
    checks = (plain, in_branch, only_in_branch, in_loop, counted)
    return tf.reduce_prod([check(ids) for check in checks])


def model_fn(features, labels, mode, params):
    ids = features["ids"]
    w = tf.get_variable("w", initializer=[0.1, 0.2, 0.3, 0.4], use_resource=True)
    scores = tf.gather(w, ids) * factor(ids)
    predictions = {"scores": scores}
    if mode == "infer":
        return kte.tf1.EstimatorSpec(mode, predictions=predictions)
    mask = tf.sequence_mask(features["lengths"], 4)
    # Shapes are unknown, so that tf.metrics asserts on a device.
    given = tf.placeholder_with_default(mask, [None, None])
    guess = tf.placeholder_with_default(tf.cast(scores > 0.5, tf.int32), [None] * 2)
    loss = tf.reduce_mean(tf.square(scores - tf.cast(labels, tf.float32)))
    metrics = {
        "accuracy": tf.metrics.accuracy(labels, guess, given),
        "mean": tf.metrics.mean(scores, tf.cast(given, tf.float32)),
        "precision": tf.metrics.precision(labels, guess, given),
    }
    step = tf.train.get_global_step()
    train_op = tf.train.GradientDescentOptimizer(0.5).minimize(loss, step)
    return kte.tf1.EstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metric_ops=metrics
    )


def test_results_match_tensorflow(tmp_path):
    """TensorFlow 1.15.5 has these results after the same script."""
    made = estimator(model_fn, tmp_path)
    made.train(fed(DATA), steps=2)
    values = values_of(made)
    kernel = [0.03906249, 0.68750006, 0.19804685, 0.47265625]
    np.testing.assert_allclose(values["w"], kernel, rtol=1e-6)
    # Each assertion adds one.
    assert values["runs"] == 2
    expected = {
        "accuracy": 0.9,
        "loss": 0.061928228,
        "mean": 0.5191797,
        "precision": 1.0,
        "global_step": 2,
    }
    assert made.evaluate(fed(DATA)) == pytest.approx(expected, rel=1e-6)
    scores = next(made.predict(fed(DATA)))["scores"]
    np.testing.assert_allclose(scores, values["w"][IDS[0]], rtol=1e-6)


def _printed(x):
    count = tf.get_variable("printed", initializer=0.0, use_resource=True)
    return tf.Print(x, [tf.timestamp(), tf.as_string(x), count.assign_add(1.0)])


PRINTING = {
    "plain": _printed,
    "branch": lambda x: tf.cond(x > 0, lambda: _printed(x), lambda: x),
    "loop": lambda x: tf.while_loop(
        lambda n, _: n < 1, lambda n, y: [n + 1, _printed(y)], [0, x]
    )[1],
}


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("form", PRINTING)
def test_printing_returns_its_first_input(form, use_tpu, tmp_path, caplog):
    warn_once.cache_clear()

    def model_fn(features, labels, mode, params):
        w = tf.get_variable("w", initializer=3.0, use_resource=True)
        if form == "loop":
            tf.get_variable("printed", initializer=0.0, use_resource=True)
        with tf.variable_scope("", reuse=tf.AUTO_REUSE):
            loss = PRINTING[form](tf.square(w))
        step = tf.train.get_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)
        return kte.tf1.EstimatorSpec(mode, loss=loss, train_op=train_op)

    made = estimator(model_fn, tmp_path, use_tpu=use_tpu)
    made.train(fed([np.ones((16, 1), "float32")] * 2), steps=2)
    assert caplog.text.count("`tf.Print` prints nothing in a step") == 1
    values = values_of(made)
    np.testing.assert_allclose(values["w"], 3 * 0.8**2, 1e-6)
    # Printing needs a change of this variable.
    assert values["printed"] == 2
