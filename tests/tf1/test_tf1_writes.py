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
    [(of_both, True), (of_batch, False), (by_mode, False)],
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
