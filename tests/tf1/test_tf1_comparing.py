"""A TensorFlow 1 program and its ports to Keras."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow
import tensorflow.compat.v1 as tf

import keras_tpu_estimator as kte


def old_model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """A program of 2018 in operations that TensorFlow 2 still has."""
    del params

    def dense(x: Any, units: int, name: str) -> Any:
        with tf.variable_scope(name):
            kernel = tf.get_variable("kernel", [x.shape[-1], units])
            bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
            return tf.nn.bias_add(tf.matmul(x, kernel), bias)

    x = tf.nn.relu(dense(features, 8, "hidden"))
    if mode == "train":
        x = tf.nn.dropout(x, rate=0.3)
    with tf.variable_scope("norm"):
        gamma = tf.get_variable("gamma", [8], initializer=tf.ones_initializer())
        beta = tf.get_variable("beta", [8], initializer=tf.zeros_initializer())
    mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
    x = tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3)
    outputs = dense(x, 1, "output")
    if mode == "infer":
        return kte.tf1.TPUEstimatorSpec(mode, predictions={"y": outputs})
    loss = tf.reduce_mean((outputs - labels) ** 2)
    train_op = None
    if mode == "train":
        optimizer = tf.train.AdamOptimizer(0.01, epsilon=1e-7)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def port(activation: str = "relu", epsilon: float = 1e-3, rate: float = 0.01) -> Any:
    """Returns a port, which may have a fault."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        x = keras.layers.Dense(8, activation=activation, name="hidden")(features)
        x = keras.layers.Dropout(0.3)(x, training=mode == "train")
        x = keras.layers.LayerNormalization(epsilon=epsilon, name="norm")(x)
        outputs = keras.layers.Dense(1)(x)
        if mode == "infer":
            return kte.TPUEstimatorSpec(mode, predictions={"y": outputs})
        loss = keras.ops.mean((outputs - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(rate, epsilon=1e-7))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    return model_fn


def input_fn(params: Any) -> Any:
    """Returns a data set that both kinds of programs read."""
    del params
    x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
    data = tensorflow.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))
    return data.batch(16, drop_remainder=True)


@pytest.mark.parametrize(
    ("new", "kind", "words"),
    [
        (port(), None, ""),
        (port(activation="gelu"), "loss", "`hidden/bias`, and differ before `norm/"),
        (port(epsilon=1e-2), "loss", "and differ before `norm/gamma`"),
        (port(rate=0.02), "variable", "2 times"),
    ],
    ids=["port", "gelu", "epsilon", "rate"],
)
def test_port_is_compared(new: Any, kind: str | None, words: str) -> None:
    old = kte.tf1.model_fn(old_model_fn)
    report = kte.compare(old, new, input_fn, steps=2)
    if kind is None:
        assert report.is_equal, str(report)
        assert {one.kind for one in report.compared} >= {"gradient", "prediction"}
        assert [pair.old for pair in report.pairing.guesses] == [
            "output/kernel",
            "output/bias",
        ]
        return
    assert report.finding is not None, str(report)
    assert report.finding.compared.kind == kind, str(report)
    assert words in report.finding.explanation, str(report)
