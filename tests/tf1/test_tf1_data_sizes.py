"""Tests sizes that depend on data within a step, and sizes of zero."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import assert_same, run_in_session, trained, variable

from keras_tpu_estimator.tf1_tools.tf_estimator import Estimator

X = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")


def layer(x):
    """A dense layer over the last axis of any tensor."""
    return tf.tensordot(x, variable("kernel", 3, 3, seed=1), 1) + variable(
        "bias", 3, seed=2
    )


def of_kept(use):
    """A network of the rows that a condition keeps, like a pad remover."""

    def network(x):
        rows = tf.reshape(x, [-1, 3])
        kept = tf.where(rows[:, 0] < 0.3)
        return use(tf.gather_nd(rows, kept), kept, tf.shape(rows))

    return network


USES = {
    "matrix": lambda rows, kept, shape: layer(rows),
    "two_layers": lambda rows, kept, shape: tf.matmul(
        tf.nn.relu(layer(rows[None])[0]), variable("second", 3, 3)
    ),
}


@pytest.mark.parametrize("use", USES)
def test_sizes_that_depend_on_data(tmp_path, use):
    network = of_kept(USES[use])

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_sum(tf.square(network(features)))
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss, step)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def without_labels(features, mode, params):
        return model_fn(features, None, mode, params)

    data = [X, -X]
    _, expected = run_in_session(without_labels, [(x,) for x in data])
    assert_same(trained(model_fn, tmp_path, data), expected, rtol=1e-4)


def test_variables_with_a_dimension_of_zero(tmp_path):
    """Weights, metrics and predictions match TensorFlow 1.15.5."""

    def model_fn(features, labels, mode, params):
        empty = tf.get_variable("empty", [0, 3])
        none = tf.get_variable("none", [2, 0], initializer=tf.zeros_initializer())
        w = tf.get_variable("w", [2, 1], initializer=tf.ones_initializer())
        x = tf.concat([features, tf.matmul(features, none)], 1)
        y = tf.matmul(x, w) + tf.reduce_sum(empty)
        if mode == kte.ModeKeys.PREDICT:
            return kte.tf1.EstimatorSpec(mode, predictions={"y": y})
        loss = tf.losses.mean_squared_error(labels, y)
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.AdamOptimizer(0.1).minimize(loss, step)
        return kte.tf1.EstimatorSpec(
            mode,
            loss=loss,
            train_op=train_op,
            eval_metric_ops={"m": tf.metrics.mean(y)},
        )

    def input_fn():
        x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
        return tf.data.Dataset.from_tensors((x, y)).repeat(4)

    for expected, loss in ((0.8011878, 0.3628564), (0.6129167, 0.051000733)):
        made = Estimator(model_fn, str(tmp_path), params={})
        made.train(input_fn, steps=2)
        found = made.get_variable_value("w").ravel()
        np.testing.assert_allclose(found, [expected] * 2, rtol=1e-5)
        result = made.evaluate(input_fn)
        np.testing.assert_allclose(result["loss"], loss, rtol=1e-4)
        np.testing.assert_allclose(result["m"], 2 * expected, rtol=1e-5)
        row = next(made.predict(input_fn))
        np.testing.assert_allclose(row["y"], [2 * expected], rtol=1e-5)
    assert made.get_variable_value("empty").shape == (0, 3)
    assert made.get_variable_value("none").shape == (2, 0)
