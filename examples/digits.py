"""Reads handwritten digits: train, evaluate and predict with TPUEstimator.

Run it with `python examples/digits.py`. It takes less than a minute.
"""

import logging

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

HELD_OUT = 360


def load():
    """Returns shuffled 8x8 images and labels. The last ones are held out."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order] / 16).astype("float32")[..., None]
    labels = digits.target[order].astype("int32")
    return images, labels


def model_fn(features, labels, mode, params):
    is_training = mode == kte.ModeKeys.TRAIN
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(features["image"])
    x = layers.BatchNormalization()(x, training=is_training)
    x = layers.Conv2D(32, 3, strides=2, activation="relu")(x)
    x = layers.Flatten()(x)
    x = layers.Dropout(0.3)(x, training=is_training)
    logits = layers.Dense(10)(x)

    if mode == kte.ModeKeys.PREDICT:
        predictions = {
            "digit": ops.argmax(logits, axis=-1),
            "probability": ops.max(ops.softmax(logits), axis=-1),
        }
        return kte.TPUEstimatorSpec(mode, predictions=predictions)

    loss = ops.mean(
        keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    )
    if mode == kte.ModeKeys.EVAL:
        metrics = (metric_fn, [labels, logits])
        return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)

    # TensorBoard shows this metric and the loss.
    kte.summary.image("digits", features["image"])
    kte.summary.histogram("logits", logits)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(params["learning_rate"]))
    return kte.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss),
        train_metrics=(metric_fn, [labels, logits]),
    )


def metric_fn(labels, logits):
    digits = ops.argmax(logits, axis=-1)
    return {"accuracy": kte.metrics.accuracy(labels, digits)}


def train_input_fn(params):
    images, labels = load()
    size, rng = params["batch_size"], np.random.default_rng(0)
    while True:
        order = rng.permutation(len(labels) - HELD_OUT)
        for start in range(0, len(order) - size + 1, size):
            rows = order[start : start + size]
            yield {"image": images[rows]}, labels[rows]


def held_out_input_fn(params):
    images, labels = load()
    size = params["batch_size"]
    # The last batch is smaller, but each image counts once.
    for start in range(len(labels) - HELD_OUT, len(labels), size):
        rows = slice(start, start + size)
        yield {"image": images[rows]}, labels[rows]


def make_estimator(model_dir=None):
    return kte.TPUEstimator(
        model_fn,
        config=kte.RunConfig(
            model_dir=model_dir,
            tpu_config=kte.TPUConfig(iterations_per_loop=100),
            tf_random_seed=0,
        ),
        params={"learning_rate": 2e-3},
        train_batch_size=64,
        eval_batch_size=64,
        predict_batch_size=64,
    )


def main(steps=800, model_dir=None):
    """Trains, evaluates and predicts. Returns the results of the evaluation."""
    estimator = make_estimator(model_dir)

    estimator.train(train_input_fn, max_steps=steps)
    result = estimator.evaluate(held_out_input_fn)
    print(f"accuracy on {HELD_OUT} held-out images: {result['accuracy']:.3f}")

    _, labels = load()
    predictions = estimator.predict(held_out_input_fn)
    for label, row in zip(labels[-HELD_OUT:][:5], predictions, strict=False):
        print(f"a {label} was read as {row['digit']} ({row['probability']:.0%} sure)")
    print(f"to look at the curves: tensorboard --logdir {estimator.model_dir}")
    return result


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("keras_tpu_estimator").setLevel(logging.INFO)
    main()
