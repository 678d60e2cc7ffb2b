"""Tests that deleted estimators leave no graph in memory."""

import keras_tpu_estimator as kte  # isort: skip

import gc

import pytest
import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1_tools.tf_estimator.estimators import Estimator


def model_fn(features, labels, mode):
    w = tf.get_variable("w", [1, 1])
    loss = tf.losses.mean_squared_error(labels, tf.matmul(features, w))
    optimizer = tf.train.RMSPropOptimizer(0.1)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return kte.tf1.EstimatorSpec(mode, loss=loss, train_op=train_op)


def model_fn_of_words(features, labels, mode):
    """Reads and returns strings, which only the host can."""
    words = ["a", "b"]
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(words, [0, 1]), 0
    )
    w = tf.get_variable("w", [2])
    value = tf.gather(w, table.lookup(features))
    if mode == kte.ModeKeys.PREDICT:
        word = tf.gather(words, tf.cast(value > 0, tf.int64))
        return kte.tf1.EstimatorSpec(mode, predictions={"word": word})
    loss = tf.losses.mean_squared_error(labels[:, 0], value)
    train_op = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    metrics = {"mean": tf.metrics.mean(value)}
    return kte.tf1.EstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metric_ops=metrics
    )


def numbers():
    return tf.data.Dataset.from_tensors(([[1.0]] * 8, [[2.0]] * 8)).repeat(2)


def strings():
    return tf.data.Dataset.from_tensors((["a", "b"] * 4, [[2.0]] * 8)).repeat(2)


def graphs():
    """Returns the number of graphs that exist."""
    gc.collect()
    return sum(issubclass(type(each), tf.Graph) for each in gc.get_objects())


@pytest.mark.rows(1)
@pytest.mark.parametrize("debug_nans", [False, True])
def test_training(tmp_path, debug_nans):
    counts = []
    for name in "abc":
        config = kte.RunConfig(debug_nans=debug_nans)
        Estimator(model_fn, tmp_path / name, config).train(numbers, steps=1)
        counts.append(graphs())
    assert counts[0] == counts[1] == counts[2]


def test_all_modes_of_strings(tmp_path):
    counts = []
    for name in "abc":
        estimator = Estimator(model_fn_of_words, tmp_path / name)
        estimator.train(strings, steps=1)
        estimator.evaluate(strings)
        assert len([*estimator.predict(strings)]) == 16
        del estimator
        counts.append(graphs())
    assert counts[0] == counts[1] == counts[2]
