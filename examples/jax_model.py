"""Trains a small flax.nnx ResNet on handwritten digits, with optax.

Run it with `python examples/jax_model.py`, after `pip install -e
'.[examples,flax]'`. It takes about a minute.
"""

import logging

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import jax.numpy as jnp
import numpy as np
import optax
import tensorflow as tf
from flax import nnx
from sklearn.datasets import load_digits

HELD_OUT = 360
CHANNELS = 16
BLOCKS = 2


class Block(nnx.Module):
    """A convolution with batch normalization and a shortcut."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(CHANNELS, CHANNELS, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(CHANNELS, momentum=0.9, rngs=rngs)

    def __call__(self, x):
        return x + nnx.relu(self.norm(self.conv(x)))


class ResNet(nnx.Module):
    """A network from images to logits, as in any flax script."""

    def __init__(self, rngs):
        self.stem = nnx.Conv(1, CHANNELS, (3, 3), rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(BLOCKS)])
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.head = nnx.Linear(4 * 4 * CHANNELS, 10, rngs=rngs)

    def __call__(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        x = nnx.max_pool(x, (2, 2), strides=(2, 2))
        return self.head(self.dropout(x.reshape(len(x), -1)))


def model_fn(features, labels, mode, params):
    # Each parameter, average and key is a variable, like resnet/stem/kernel.
    net = kte.jax_params("resnet", lambda key: ResNet(nnx.Rngs(key)))
    if mode == kte.ModeKeys.TRAIN:
        net.train()
    else:
        net.eval()
    logits = net(features["image"])
    # The averages of batch normalization, and the number of dropout masks.
    kte.assign_jax_params("resnet", net)

    if mode == kte.ModeKeys.PREDICT:
        digits = {"digit": jnp.argmax(logits, axis=-1)}
        return kte.TPUEstimatorSpec(mode, predictions=digits)
    loss = optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    if mode == kte.ModeKeys.EVAL:
        metrics = (metric_fn, [labels, logits])
        return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
    rate = optax.cosine_decay_schedule(params["learning_rate"], params["steps"])
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.inject_hyperparams(optax.adamw)(learning_rate=rate),
    )
    train_op = kte.CrossShardOptimizer(optimizer).minimize(loss)
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def metric_fn(labels, logits):
    digits = jnp.argmax(jnp.asarray(logits), axis=-1)
    return {"accuracy": kte.metrics.accuracy(labels, digits)}


def load():
    """Returns shuffled 8x8 images and labels. The last ones are held out."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order] / 16).astype("float32")[..., None]
    return {"image": images}, digits.target[order].astype("int32")


def dataset(part):
    features, labels = load()
    return tf.data.Dataset.from_tensor_slices(
        ({"image": features["image"][part]}, labels[part])
    )


def train_input_fn(params):
    data = dataset(slice(None, -HELD_OUT)).shuffle(2000).repeat()
    return data.batch(params["batch_size"], drop_remainder=True)


def held_out_input_fn(params):
    return dataset(slice(-HELD_OUT, None)).batch(params["batch_size"])


def main(steps=800, model_dir=None):
    """Trains, evaluates and predicts. Returns the results of the evaluation."""
    estimator = kte.TPUEstimator(
        model_fn,
        config=kte.RunConfig(
            model_dir=model_dir,
            tpu_config=kte.TPUConfig(iterations_per_loop=100),
            tf_random_seed=0,
        ),
        params={"learning_rate": 5e-3, "steps": steps},
        train_batch_size=64,
        eval_batch_size=64,
        predict_batch_size=64,
    )
    estimator.train(train_input_fn, max_steps=steps)
    result = estimator.evaluate(held_out_input_fn)
    print(f"accuracy on {HELD_OUT} held-out images: {result['accuracy']:.3f}")
    right = sum(
        row["digit"] == label
        for row, label in zip(
            estimator.predict(held_out_input_fn),
            load()[1][-HELD_OUT:],
            strict=False,
        )
    )
    print(f"{right} of them were read right, as `predict` says")
    for path in (
        "resnet/stem/kernel",
        "optax/inner_state/mu/resnet/stem/kernel",
    ):
        print(path, estimator.get_variable_value(path).shape)
    return result


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("keras_tpu_estimator").setLevel(logging.INFO)
    main()
