"""Reads handwritten digits: `tf1_mnist.py`, ported to Keras.

Line by line the same program, with the same layers, names and numbers of steps:

    python examples/ported_mnist.py --use_tpu

It takes less than a minute.
"""

import tempfile

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from keras import layers, ops
from sklearn.datasets import load_digits

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
    net = ops.reshape(images, [-1, 8, 8, 1])
    net = layers.Conv2D(16, 3, padding="same", activation="relu")(net)
    net = layers.BatchNormalization()(net, training=is_training)
    net = layers.MaxPooling2D(2, 2)(net)
    net = layers.Conv2D(32, 3, padding="same", activation="relu")(net)
    net = layers.MaxPooling2D(2, 2)(net)
    net = layers.Flatten()(net)
    net = layers.Dense(64, activation="relu")(net)
    net = layers.Dropout(0.3)(net, training=is_training)
    return layers.Dense(10)(net)


def metric_fn(labels, logits):
    """Runs on the host, with tensors of all cores."""
    predictions = ops.argmax(logits, axis=1)
    return {"accuracy": kte.metrics.accuracy(labels, predictions)}


def model_fn(features, labels, mode, params):
    """Returns the spec of one mode."""
    logits = network(features, mode == kte.ModeKeys.TRAIN)

    if mode == kte.ModeKeys.PREDICT:
        predictions = {
            "digit": ops.argmax(logits, axis=1),
            "probability": ops.max(ops.softmax(logits), axis=1),
        }
        return kte.TPUEstimatorSpec(mode, predictions=predictions)

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, logits)

    if mode == kte.ModeKeys.EVAL:
        return kte.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, [labels, logits])
        )

    learning_rate = keras.optimizers.schedules.ExponentialDecay(
        FLAGS.learning_rate,
        decay_steps=100,
        decay_rate=0.8,
    )
    optimizer = keras.optimizers.SGD(learning_rate, momentum=0.9)
    if FLAGS.use_tpu:
        optimizer = kte.CrossShardOptimizer(optimizer)
    train_op = kte.minimize(optimizer, loss)
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


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
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    config = kte.RunConfig(
        model_dir=FLAGS.model_dir or tempfile.mkdtemp(),
        tf_random_seed=0,
        tpu_config=kte.TPUConfig(FLAGS.iterations),
    )
    estimator = kte.TPUEstimator(
        model_fn=model_fn,
        use_tpu=FLAGS.use_tpu,
        train_batch_size=FLAGS.batch_size,
        eval_batch_size=FLAGS.batch_size,
        predict_batch_size=FLAGS.batch_size,
        config=config,
    )
    estimator.train(train_input_fn, max_steps=FLAGS.train_steps)
    result = estimator.evaluate(held_out_input_fn, steps=HELD_OUT // FLAGS.batch_size)
    print(f"accuracy on held-out images: {result['accuracy']:.3f}")

    _, labels = load()
    predictions = estimator.predict(held_out_input_fn)
    for label, row in zip(labels[-HELD_OUT:][:5], predictions, strict=False):
        print(f"a {label} was read as {row['digit']} ({row['probability']:.0%} sure)")


if __name__ == "__main__":
    app.run(main)
