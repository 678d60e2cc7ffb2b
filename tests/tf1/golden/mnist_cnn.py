"""A convolutional network for digits, in the style of mnist_tpu."""

import numpy as np
import starting_values
import tensorflow.compat.v1 as tf

STEPS = 12
BATCH = 16
PARAMS = {"learning_rate": 0.2, "dropout": 0.0}
WITH_DROPOUT = {"dropout": 0.4}
PIXELS = 12


def network(images, params, is_training):
    """Returns the logits of ten digits."""
    start = starting_values.Normal(0.2)
    net = tf.reshape(images, [-1, PIXELS, PIXELS, 1])
    for filters in (4, 8):
        net = tf.layers.conv2d(
            net,
            filters,
            kernel_size=[5, 5],
            padding="same",
            activation=tf.nn.relu,
            kernel_initializer=start,
        )
        net = tf.layers.max_pooling2d(net, [2, 2], [2, 2], padding="same")
    net = tf.layers.flatten(net)
    net = tf.layers.dense(net, 16, tf.nn.relu, kernel_initializer=start)
    net = tf.layers.dropout(net, params["dropout"], training=is_training)
    return tf.layers.dense(net, 10, kernel_initializer=start)


def metric_fn(labels, logits):
    """Computes metrics on the host from the outputs of the cores."""
    predictions = tf.argmax(logits, 1)
    return {
        "accuracy": tf.metrics.accuracy(labels, predictions),
        "recall_at_3": tf.metrics.recall_at_k(tf.cast(labels, tf.int64), logits, 3),
    }


def model_fn(features, labels, mode, params):
    """Trains, evaluates or predicts."""
    images = features
    if isinstance(images, dict):
        images = features["image"]
    logits = network(images, params, mode == tf.estimator.ModeKeys.TRAIN)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {
            "classes": tf.argmax(logits, axis=1),
            "probabilities": tf.nn.softmax(logits),
        }
        return tf.estimator.tpu.TPUEstimatorSpec(mode, predictions=predictions)
    loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.tpu.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, [labels, logits])
        )
    learning_rate = tf.train.exponential_decay(
        params["learning_rate"],
        tf.train.get_global_step(),
        decay_steps=4,
        decay_rate=0.9,
    )
    optimizer = tf.train.GradientDescentOptimizer(learning_rate)
    if params["use_tpu"]:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tf.estimator.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def dataset(examples, seed):
    """Returns digits as blobs at different positions."""
    rng = np.random.RandomState(seed)
    labels = rng.randint(10, size=examples).astype(np.int32)
    images = rng.uniform(size=(examples, PIXELS, PIXELS)).astype(np.float32)
    rows, columns = labels // 4 * 4, labels % 4 * 3
    for image, row, column in zip(images, rows, columns, strict=True):
        image[row : row + 4, column : column + 3] += 1.0
    return tf.data.Dataset.from_tensor_slices((images, labels))


def train_input_fn(params):
    """Returns endless batches."""
    data = dataset(STEPS * BATCH, seed=1)
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def eval_input_fn(params):
    """Returns batches that all have the full size, as TPUs require."""
    data = dataset(4 * BATCH, seed=2)
    return data.batch(params["batch_size"], drop_remainder=True)
