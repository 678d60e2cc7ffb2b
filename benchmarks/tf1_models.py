"""Networks in TF1 code, for this package and for the original.

This module imports neither, because `benchmarks.tf1_original` runs it with another
Python.
"""

import math

import tensorflow.compat.v1 as tf

LEARNING_RATE = 1e-3


def model_fn_of(network, spec):
    """Returns a `model_fn` that trains a network as a classifier.

    Args:
        network: A function from features to logits.
        spec: The class `TPUEstimatorSpec`.
    """

    def model_fn(features, labels, mode, params):
        logits = network(features)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        if mode == "eval":
            return spec(mode, loss=loss, eval_metrics=(_metric_fn, [labels, logits]))
        optimizer = tf.train.AdamOptimizer(LEARNING_RATE)
        if params["use_tpu"]:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return spec(mode, loss=loss, train_op=train_op)

    return model_fn


def mlp(*sizes):
    """Returns a multilayer perceptron, given the units of its layers."""

    def network(x):
        *hidden, classes = sizes
        for number, units in enumerate(hidden):
            x = dense(x, units, f"hidden_{number}", tf.nn.relu)
        return dense(x, classes, "logits")

    return network


def attention(classes):
    """Returns the transformer block of `benchmarks.networks`."""

    def network(x):
        width = x.shape.as_list()[-1]
        x = x + _attention(layer_norm(x, "norm_1"), heads=4)
        y = dense(layer_norm(x, "norm_2"), 4 * width, "wide", tf.nn.relu)
        x = x + dense(y, width, "narrow")
        return dense(tf.reduce_mean(x, axis=1), classes, "logits")

    return network


def convolutions(classes):
    """Returns the two convolutions with overlapping pools of `benchmarks.networks`."""

    def network(x):
        for number, filters in enumerate((32, 64)):
            x = tf.nn.relu(_convolution(x, filters, f"convolution_{number}"))
            x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        batch, *image = x.shape.as_list()
        return dense(tf.reshape(x, [batch, math.prod(image)]), classes, "logits")

    return network


def bert(words, width, layers, heads, classes):
    """Returns a BERT of the given sizes, with a classifier on the first word."""

    def network(ids):
        table = tf.get_variable("words", [words, width])
        places = tf.get_variable("places", [512, width])
        x = tf.gather(table, ids) + places[: ids.shape.as_list()[1]]
        x = layer_norm(x, "norm")
        for number in range(layers):
            with tf.variable_scope(f"layer_{number}"):
                x = layer_norm(x + _attention(x, heads), "norm_1")
                wide = dense(x, 4 * width, "wide", gelu)
                x = layer_norm(x + dense(wide, width, "narrow"), "norm_2")
        pooled = dense(x[:, 0], width, "pooler", tf.tanh)
        return dense(pooled, classes, "logits")

    return network


def dense(x, units, name, activation=None):
    """Returns the output of a dense layer over the last axis."""
    *outer, width = x.shape.as_list()
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [width, units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
    y = tf.matmul(tf.reshape(x, [-1, width]), kernel)
    y = tf.reshape(tf.nn.bias_add(y, bias), [*outer, units])
    return activation(y) if activation else y


def _convolution(x, filters, name):
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [3, 3, x.shape.as_list()[-1], filters])
        bias = tf.get_variable("bias", [filters], initializer=tf.zeros_initializer())
    return tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias)


def layer_norm(x, name):
    """Normalizes the last axis."""
    width = x.shape.as_list()[-1]
    with tf.variable_scope(name):
        gamma = tf.get_variable("gamma", [width], initializer=tf.ones_initializer())
        beta = tf.get_variable("beta", [width], initializer=tf.zeros_initializer())
    mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3)


def _attention(x, heads):
    batch, length, width = x.shape.as_list()

    def split(name):
        y = tf.reshape(dense(x, width, name), [batch, length, heads, -1])
        return tf.transpose(y, [0, 2, 1, 3])

    query, key, value = split("query"), split("key"), split("value")
    scores = tf.matmul(query, key, transpose_b=True)
    shares = tf.nn.softmax(scores / math.sqrt(width // heads))
    mixed = tf.transpose(tf.matmul(shares, value), [0, 2, 1, 3])
    return dense(tf.reshape(mixed, [batch, length, width]), width, "mixed")


def gelu(x):
    """Returns the activation, computed with the error function."""
    return x * 0.5 * (1.0 + tf.erf(x / math.sqrt(2.0)))


def _metric_fn(labels, logits):
    classes = tf.argmax(logits, axis=1)
    return {"accuracy": tf.metrics.accuracy(labels, classes)}
