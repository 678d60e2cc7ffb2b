"""Draws handwritten digits with two networks that compete in one step.

Like `TPUGANEstimator` and the DCGAN of the TPU examples, it trains a generator
that makes images from noise, and a discriminator that distinguishes them from
real images. Each has its own optimizer.

Run it with `python examples/gan.py`. It takes less than half a minute.
"""

import logging

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import keras
import numpy as np
import tensorflow as tf
from digits import load
from keras import layers, ops

NOISE = 16
SHADES = " .:-=+*#%@"


def generator(noise, is_training):
    """Returns images of shape `[batch, 8, 8, 1]`, from 0 to 1."""
    with kte.variable_scope("generator"):
        x = noise
        for units in (64, 128):
            x = layers.Dense(units)(x)
            x = layers.BatchNormalization()(x, training=is_training)
            x = layers.LeakyReLU(0.2)(x)
        x = layers.Dense(64, activation="sigmoid")(x)
        return ops.reshape(x, (-1, 8, 8, 1))


def discriminator(images):
    """Returns a logit for each image, which is high for real images."""
    # Both calls use the same weights.
    with kte.variable_scope("discriminator", reuse=kte.AUTO_REUSE):
        x = layers.Flatten()(images)
        for units in (128, 64):
            x = layers.Dense(units)(x)
            x = layers.LeakyReLU(0.2)(x)
        return layers.Dense(1)(x)


def cross_entropy(logits, target):
    return ops.mean(
        ops.binary_crossentropy(
            target * ops.ones_like(logits), logits, from_logits=True
        )
    )


def model_fn(features, labels, mode, params):
    made = generator(features["noise"], mode == kte.ModeKeys.TRAIN)
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, predictions={"image": made})

    on_real, on_made = discriminator(labels), discriminator(made)
    generator_loss = cross_entropy(on_made, 1.0)
    # The target for real images is 0.9, which makes training more stable.
    discriminator_loss = cross_entropy(on_real, 0.9) + cross_entropy(on_made, 0.0)
    loss = generator_loss + discriminator_loss
    if mode == kte.ModeKeys.EVAL:
        metrics = (metric_fn, [on_real, on_made])
        return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)

    kte.summary.image("made", made)
    kte.summary.scalar("generator_loss", generator_loss)
    kte.summary.scalar("discriminator_loss", discriminator_loss)
    return kte.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=[
            minimize(generator_loss, "generator", params),
            minimize(discriminator_loss, "discriminator", params),
        ],
    )


def minimize(loss, network, params):
    """Returns a train op that changes only one of the networks."""
    adam = keras.optimizers.Adam(
        params["learning_rate"], beta_1=0.5, name=f"{network}_adam"
    )
    variables = [
        variable
        for variable in kte.trainable_variables()
        if variable.path.startswith(f"{network}/")
    ]
    return kte.CrossShardOptimizer(adam).minimize(loss, var_list=variables)


def metric_fn(on_real, on_made):
    return {
        "real_taken_for_real": kte.metrics.mean(on_real > 0),
        "made_taken_for_real": kte.metrics.mean(on_made > 0),
    }


def input_fn(params):
    """Yields noise, and real images as labels."""
    images, _ = load()
    size = params["batch_size"]
    dataset = tf.data.Dataset.from_tensor_slices(images)
    dataset = dataset.shuffle(len(images), seed=0).repeat()
    dataset = dataset.batch(size, drop_remainder=True)
    noise = (
        tf.data.Dataset.random(seed=0)
        .batch(2)
        .map(lambda seed: {"noise": tf.random.stateless_normal([size, NOISE], seed)})
    )
    return tf.data.Dataset.zip((noise, dataset))


def noise_input_fn(params):
    noise = np.random.default_rng(0).normal(size=(500, NOISE))
    dataset = tf.data.Dataset.from_tensor_slices({"noise": noise.astype("float32")})
    return dataset.batch(params["batch_size"])


def frechet_distance(one, other):
    """Returns the distance of two sets of images, as Gaussian distributions."""
    one, other = one.reshape(len(one), -1), other.reshape(len(other), -1)
    a, b = np.cov(one, rowvar=False), np.cov(other, rowvar=False)
    # The trace of a matrix root is the sum of the roots of the eigenvalues.
    roots = np.sqrt(np.abs(np.linalg.eigvals(a @ b).real))
    means = np.sum((one.mean(axis=0) - other.mean(axis=0)) ** 2)
    return float(means + np.trace(a + b) - 2 * roots.sum())


def drawn(images):
    """Returns images side by side, as text."""
    rows = np.concatenate(images[..., 0], axis=1)
    shades = np.asarray(list(SHADES))
    pixels = shades[np.clip(rows * len(SHADES), 0, len(SHADES) - 1).astype(int)]
    return "\n".join("".join(row) for row in np.repeat(pixels, 2, axis=1))


def main(steps=3000, model_dir=None):
    """Trains and draws. Returns the distance from real images."""
    estimator = kte.TPUEstimator(
        model_fn,
        config=kte.RunConfig(
            model_dir=model_dir,
            tpu_config=kte.TPUConfig(iterations_per_loop=500),
            tf_random_seed=0,
        ),
        params={"learning_rate": 5e-4},
        train_batch_size=64,
        eval_batch_size=64,
        predict_batch_size=64,
    )
    estimator.train(input_fn, max_steps=steps)
    result = estimator.evaluate(input_fn, steps=10)
    print(
        f"taken for real: {result['real_taken_for_real']:.0%} of real images,"
        f" {result['made_taken_for_real']:.0%} of made ones"
    )
    made = [row["image"] for row in estimator.predict(noise_input_fn)]
    made = np.stack(made)
    real, _ = load()
    distance = frechet_distance(made, real)
    noise = np.random.default_rng(0).uniform(size=made.shape)
    print(
        f"distance from real images: {distance:.2f}; of one half of them from "
        f"the other {frechet_distance(real[::2], real[1::2]):.2f}, of noise "
        f"{frechet_distance(noise, real):.2f}"
    )
    print(drawn(made[:8]))
    return distance


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("keras_tpu_estimator").setLevel(logging.INFO)
    main()
