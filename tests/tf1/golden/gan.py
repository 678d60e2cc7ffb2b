"""A GAN whose two networks have separate optimizers."""

import numpy as np
import starting_values
import tensorflow.compat.v1 as tf

STEPS = 12
BATCH = 16
PARAMS = {"learning_rate": 0.01}
NOISE, WIDTH = 4, 6


def generator(noise):
    """Returns points made of noise."""
    start = starting_values.Normal(0.3, seed=1)
    with tf.variable_scope("Generator", reuse=tf.AUTO_REUSE):
        x = tf.layers.dense(noise, 8, tf.nn.relu, kernel_initializer=start)
        return tf.layers.dense(x, WIDTH, tf.tanh, kernel_initializer=start)


def discriminator(points):
    """Returns a logit of whether points are real."""
    start = starting_values.Normal(0.3, seed=2)
    with tf.variable_scope("Discriminator", reuse=tf.AUTO_REUSE):
        x = tf.layers.dense(
            points, 8, tf.nn.leaky_relu, kernel_initializer=start, name="hidden"
        )
        return tf.layers.dense(x, 1, kernel_initializer=start, name="logit")


def model_fn(features, labels, mode, params):
    """Trains both; the discriminator's steps are not counted."""
    del labels
    made = generator(features["noise"])
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.tpu.TPUEstimatorSpec(mode=mode, predictions={"made": made})
    of_real = tf.squeeze(discriminator(features["real"]), axis=1)
    of_made = tf.squeeze(discriminator(made), axis=1)
    cross_entropy = tf.nn.sigmoid_cross_entropy_with_logits
    on_real = cross_entropy(labels=tf.ones_like(of_real), logits=of_real)
    on_made = cross_entropy(labels=tf.zeros_like(of_made), logits=of_made)
    fooled = cross_entropy(labels=tf.ones_like(of_made), logits=of_made)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.tpu.TPUEstimatorSpec(
            mode=mode,
            loss=tf.reduce_mean(fooled),
            eval_metrics=(metric_fn, [on_real, on_made, fooled]),
        )
    discriminator_loss = tf.reduce_mean(on_real) + tf.reduce_mean(on_made)
    generator_loss = tf.reduce_mean(fooled)
    optimizers = [
        tf.train.AdamOptimizer(params["learning_rate"], beta1=0.5),
        tf.train.AdamOptimizer(params["learning_rate"], beta1=0.5),
    ]
    if params["use_tpu"]:
        optimizers = [tf.tpu.CrossShardOptimizer(each) for each in optimizers]
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        discriminator_step = optimizers[0].minimize(
            discriminator_loss,
            var_list=tf.get_collection(
                tf.GraphKeys.TRAINABLE_VARIABLES, scope="Discriminator"
            ),
        )
        generator_step = optimizers[1].minimize(
            generator_loss,
            var_list=tf.get_collection(
                tf.GraphKeys.TRAINABLE_VARIABLES, scope="Generator"
            ),
        )
        count = tf.assign_add(tf.train.get_or_create_global_step(), 1)
    return tf.estimator.tpu.TPUEstimatorSpec(
        mode=mode,
        loss=generator_loss,
        train_op=tf.group(discriminator_step, generator_step, count),
    )


def metric_fn(on_real, on_made, fooled):
    """Returns the losses of both."""
    return {
        "discriminator_loss": tf.metrics.mean(on_real + on_made),
        "generator_loss": tf.metrics.mean(fooled),
    }


def dataset(examples, seed):
    """Returns points of a curve, with reproducible noise."""
    rng = np.random.RandomState(seed)
    angles = rng.uniform(0, 2 * np.pi, size=(examples, 1))
    real = np.sin(angles + np.arange(WIDTH))
    noise = rng.normal(size=(examples, NOISE))
    features = {"real": real, "noise": noise}
    features = {k: v.astype(np.float32) for k, v in features.items()}
    return tf.data.Dataset.from_tensor_slices(features)


def train_input_fn(params):
    """Returns endless batches."""
    data = dataset(STEPS * BATCH, seed=1)
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def eval_input_fn(params):
    """Returns held-out points."""
    data = dataset(4 * BATCH, seed=2)
    return data.batch(params["batch_size"], drop_remainder=True)
