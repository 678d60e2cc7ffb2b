"""Tests evaluations and predictions that write variables that they read."""

import keras_tpu_estimator as kte  # isort: skip

import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import estimator, fed

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")


def averages(x, decay=0.5):
    """The mean of a batch, and an average that it updates."""
    average = tf.get_variable(
        "average", [3], initializer=tf.zeros_initializer(), trainable=False
    )
    mean = tf.reduce_mean(x, 0)
    new = tf.assign_sub(average, (average - mean) * (1 - decay))
    with tf.control_dependencies([new]):
        mean = tf.identity(mean)
    return mean, tf.identity(average)


def of_both(x, is_training):
    """Computes both, and chooses one by a condition."""
    mean, average = averages(x)
    return x - tf.cond(tf.cast(is_training, tf.bool), lambda: mean, lambda: average)


def by_data(x, is_training):
    """Computes both, and chooses one by the batch."""
    del is_training
    mean, average = averages(x)
    return x - tf.cond(tf.reduce_sum(x) > 0, lambda: mean, lambda: average)


def nested(x, is_training):
    """Chooses by a negated condition, and uses the other branch's input twice."""
    mean, average = averages(x)
    is_used = tf.logical_not(tf.constant(not is_training))
    first = tf.cond(is_used, lambda: mean, lambda: average)
    return x - tf.cond(is_used, lambda: mean + first - mean, lambda: first)


def of_batch(x, is_training):
    """Writes the average without using it."""
    del is_training
    return x - averages(x)[0]


def by_mode(x, is_training):
    """Writes the average only in training."""
    if is_training:
        return x - averages(x)[0]
    average = tf.get_variable("average", [3], trainable=False)
    return x - average


def program(network):
    """A model_fn for a network."""

    def model_fn(features, labels, mode, params):
        y = network(features, mode == kte.ModeKeys.TRAIN)
        if mode == kte.ModeKeys.PREDICT:
            return kte.tf1.TPUEstimatorSpec(mode, predictions={"y": y})
        w = tf.get_variable("w", [3], initializer=tf.ones_initializer())
        loss = tf.reduce_mean(tf.square(y * w))
        step = tf.train.get_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


@pytest.mark.parametrize(
    ("network", "is_warned"),
    [(by_data, True), (of_both, False), (of_batch, False), (by_mode, False)],
)
def test_writes_of_variables_that_are_read_warn(tmp_path, caplog, network, is_warned):
    made = estimator(program(network), tmp_path)
    with caplog.at_level(logging.WARNING, "keras_tpu_estimator"):
        made.train(fed([X]), steps=1)
        assert "assigns variables" not in caplog.text
        made.evaluate(fed([X]))
        list(made.predict(fed([X])))
    lines = [
        record.getMessage()
        for record in caplog.records
        if "assigns variables" in record.getMessage()
    ]
    assert len(lines) == 2 * is_warned
    for line, call in zip(lines, ("evaluate", "predict"), strict=False):
        assert line.startswith(f"In {call}, model_fn assigns variables that")
        assert "depend on: average (at " in line
        assert "test_tf1_writes.py:" in line


@pytest.mark.parametrize("network", [of_both, nested])
def test_a_branch_not_taken_writes_nothing(tmp_path, network):
    made = estimator(program(network), tmp_path)
    made.train(fed([X]), steps=1)
    expected = [0.01170413, -0.0074149035, 0.09986967]
    for _ in range(2):
        loss = made.evaluate(fed([X, X + 1]))["loss"]
        predicted = [each["y"] for each in made.predict(fed([X, X + 1]))]
        # The values of TensorFlow 1.15, with y * 1.0 as the prediction.
        average = made.get_variable_value("average")
        np.testing.assert_allclose(average, expected, rtol=1e-5)
        np.testing.assert_allclose(loss, 1.1634771, rtol=1e-5)
        np.testing.assert_allclose(np.mean(predicted), 0.53471965, rtol=1e-5)


def test_the_branch_taken_assigns_and_is_trained(tmp_path):
    def network(x, is_training):
        mean, average = averages(x)
        twos = tf.constant_initializer(2.0)
        count = tf.get_variable("count", [], initializer=tf.zeros_initializer())
        scale = tf.get_variable("scale", [3], initializer=twos)

        def taken():
            with tf.control_dependencies([tf.assign_add(count, 1.0)]):
                return mean * scale

        return x - tf.cond(tf.constant(is_training), taken, lambda: average)

    made = estimator(program(network), tmp_path)
    made.train(fed([X, X]), steps=2)
    made.evaluate(fed([X, X]))
    values = {n: made.get_variable_value(n) for n in ("average", "count", "scale")}
    mean = X.mean(0)
    np.testing.assert_allclose(values["average"], mean * 0.75, rtol=1e-5)
    # Gradients flow through the branch.
    assert values["count"] == 2
    assert np.all(values["scale"] != 2)
