"""A script of 2018 with every kind of state in its checkpoints.

This package and the original TensorFlow run it.
"""

import numpy as np
import tensorflow.compat.v1 as tf

BATCH = 8


def model_fn_of(spec_class, with_hooks=None):
    """Returns a model_fn that returns specs of a class.

    Args:
        spec_class: `TPUEstimatorSpec`.
        with_hooks: A function from the loss to arguments of the spec in TRAIN.
            Defaults to none.
    """

    def model_fn(features, labels, mode, params):
        with tf.variable_scope("tower"):
            hidden = _dense(features, 3, "hidden", 0.1)
            normal, updates = _normalized(tf.nn.relu(hidden))
            logits = _dense(normal, 1, "logits", -0.2)
        if mode == "infer":
            return spec_class(mode, predictions={"logits": logits})
        loss = tf.reduce_mean((logits - labels) ** 2)
        if mode == "eval":
            return spec_class(mode, loss=loss)
        step = tf.train.get_or_create_global_step()
        trained = tf.trainable_variables()
        rate = tf.train.exponential_decay(0.05, step, 4, 0.8)
        adam = tf.train.AdamOptimizer(rate)
        momentum = tf.train.MomentumOptimizer(rate, 0.9)
        if params["use_tpu"]:
            adam = tf.tpu.CrossShardOptimizer(adam)
            momentum = tf.tpu.CrossShardOptimizer(momentum)
        pairs = adam.compute_gradients(loss, trained)
        averages = tf.train.ExponentialMovingAverage(0.9, step)
        # The control dependency fixes the order.
        with tf.control_dependencies([loss, *(gradient for gradient, _ in pairs)]):
            first = adam.apply_gradients(pairs[::2])
        with tf.control_dependencies([first]):
            second = momentum.apply_gradients(pairs[1::2], step)
        with tf.control_dependencies([second]):
            train_op = tf.group(averages.apply(trained), *updates())
        extra = with_hooks(loss) if with_hooks else {}
        return spec_class(mode, loss=loss, train_op=train_op, **extra)

    return model_fn


def _dense(x, units, name, value):
    size = int(x.shape[-1])
    values = value * np.cos(np.arange(size * units)).reshape(size, units)
    with tf.variable_scope(name):
        kernel = tf.get_variable(
            "kernel",
            [size, units],
            initializer=tf.constant_initializer(values.astype("float32")),
        )
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.matmul(x, kernel) + bias


def _normalized(x):
    """Subtracts a moving mean; also returns its update, which counts in 64 bits."""
    mean = tf.get_variable(
        "moving_mean",
        [x.shape[-1]],
        initializer=tf.zeros_initializer(),
        trainable=False,
    )
    count = tf.get_variable(
        "count", [], tf.int64, tf.zeros_initializer(), trainable=False
    )
    batch_mean = tf.reduce_mean(x, 0)

    def updates():
        return (
            tf.assign_add(mean, 0.1 * (batch_mean - mean)),
            tf.assign_add(count, 1),
        )

    return x - mean, updates


def input_fn_from(step):
    """Returns an input_fn that starts with the batch of a step."""

    def input_fn(params):
        x = np.sin(np.arange(160 * 2)).reshape(160, 2).astype("float32")
        y = x.sum(axis=1, keepdims=True) * 2 + 1
        data = tf.data.Dataset.from_tensor_slices((x, y)).repeat()
        data = data.batch(params["batch_size"], drop_remainder=True)
        return data.skip(step)

    return input_fn
