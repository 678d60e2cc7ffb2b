"""Reads handwritten digits, like a script of 2018.

TensorFlow has no estimators any more, and this program knows nothing of that:

    python -m keras_tpu_estimator tf1 examples/tf1_mnist.py --use_tpu

It takes less than a minute.
"""

import tempfile

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

flags = tf.flags
FLAGS = flags.FLAGS

flags.DEFINE_string("model_dir", None, "Where checkpoints go.")
flags.DEFINE_bool("use_tpu", False, "Whether to use all cores.")
flags.DEFINE_integer("batch_size", 64, "The examples of a step.")
flags.DEFINE_integer("train_steps", 600, "How many steps to train.")
flags.DEFINE_integer("iterations", 100, "The steps of one loop on the cores.")
flags.DEFINE_float("learning_rate", 0.02, "That of the first step.")

HELD_OUT = 320


def load():
    """Returns shuffled 8x8 images and labels. The last ones are held out."""
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    images = (digits.images[order] / 16).astype(np.float32)
    return images, digits.target[order].astype(np.int32)


def network(images, is_training):
    """Returns the logits of the ten digits."""
    net = tf.reshape(images, [-1, 8, 8, 1])
    net = tf.layers.conv2d(net, 16, 3, padding="same", activation=tf.nn.relu)
    net = tf.layers.batch_normalization(net, training=is_training)
    net = tf.layers.max_pooling2d(net, 2, 2)
    net = tf.layers.conv2d(net, 32, 3, padding="same", activation=tf.nn.relu)
    net = tf.layers.max_pooling2d(net, 2, 2)
    net = tf.layers.flatten(net)
    net = tf.layers.dense(net, 64, activation=tf.nn.relu)
    net = tf.layers.dropout(net, rate=0.3, training=is_training)
    return tf.layers.dense(net, 10)


def metric_fn(labels, logits):
    """Runs on the host, with tensors of all cores."""
    predictions = tf.argmax(logits, axis=1)
    return {"accuracy": tf.metrics.accuracy(labels, predictions)}


def model_fn(features, labels, mode, params):
    """Builds the graph of one mode."""
    logits = network(features, mode == tf.estimator.ModeKeys.TRAIN)

    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {
            "digit": tf.argmax(logits, axis=1),
            "probability": tf.reduce_max(tf.nn.softmax(logits), axis=1),
        }
        return tf.contrib.tpu.TPUEstimatorSpec(mode, predictions=predictions)

    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)

    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.contrib.tpu.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, [labels, logits])
        )

    learning_rate = tf.train.exponential_decay(
        FLAGS.learning_rate,
        tf.train.get_global_step(),
        decay_steps=100,
        decay_rate=0.8,
    )
    optimizer = tf.train.MomentumOptimizer(learning_rate, momentum=0.9)
    if FLAGS.use_tpu:
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    with tf.control_dependencies(update_ops):
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def train_input_fn(params):
    images, labels = load()
    data = images[:-HELD_OUT], labels[:-HELD_OUT]
    dataset = tf.data.Dataset.from_tensor_slices(data).cache().repeat()
    dataset = dataset.shuffle(2000, seed=0)
    return dataset.batch(params["batch_size"], drop_remainder=True)


def held_out_input_fn(params):
    images, labels = load()
    data = images[-HELD_OUT:], labels[-HELD_OUT:]
    dataset = tf.data.Dataset.from_tensor_slices(data)
    return dataset.batch(params["batch_size"], drop_remainder=True)


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    config = tf.contrib.tpu.RunConfig(
        model_dir=FLAGS.model_dir or tempfile.mkdtemp(),
        tf_random_seed=0,
        session_config=tf.ConfigProto(allow_soft_placement=True),
        tpu_config=tf.contrib.tpu.TPUConfig(FLAGS.iterations),
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn=model_fn,
        use_tpu=FLAGS.use_tpu,
        train_batch_size=FLAGS.batch_size,
        eval_batch_size=FLAGS.batch_size,
        predict_batch_size=FLAGS.batch_size,
        config=config,
    )
    estimator.train(train_input_fn, max_steps=FLAGS.train_steps)
    result = estimator.evaluate(held_out_input_fn, steps=HELD_OUT // FLAGS.batch_size)
    print("accuracy on held-out images: %.3f" % result["accuracy"])

    _, labels = load()
    predictions = estimator.predict(held_out_input_fn)
    for label, row in zip(labels[-HELD_OUT:][:5], predictions):
        print(
            "a %d was read as %d (%.0f%% sure)"
            % (label, row["digit"], 100 * row["probability"])
        )


if __name__ == "__main__":
    tf.app.run()
