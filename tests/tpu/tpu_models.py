"""Small networks and their estimators, from which programs are made."""

import keras
import numpy as np
from helpers import model_fn_of
from keras import layers, ops

import keras_tpu_estimator as kte

BATCH, SIZE = 32, 256


def input_fn(params):
    """Batches of equal features and labels."""
    size = params["batch_size"]
    while True:
        yield np.ones((size, SIZE), "float32"), np.ones((size, 1), "float32")


def images(features):
    """The features as images."""
    return ops.reshape(features, (-1, 16, 16, 1))


def sequences(features):
    """The features as sequences."""
    return ops.reshape(features, (-1, 16, 16))


def volumes(features):
    """The features as small volumes."""
    return ops.reshape(features, (-1, 4, 8, 8, 1))


def words(features):
    """The features as ids of words."""
    return ops.cast(ops.abs(features[:, :16]) * 3, "int32") % 10


def joined(*parts):
    """Joins the outputs of all parts into one."""
    flat = [layers.Flatten()(part) for part in parts]
    return sum(layers.Dense(1)(part) for part in flat)


def dense(features, is_training):
    """Two layers, the first with layout rules in tests."""
    x = layers.Dense(64, "relu", name="up")(features)
    x = layers.Dropout(0.1)(x, training=is_training)
    return layers.Dense(1)(x)


def convolutional(features, is_training):
    """Convolutions, pooling and a normalization."""
    x = layers.Conv2D(8, 3, padding="same")(images(features))
    x = layers.BatchNormalization()(x, training=is_training)
    x = layers.MaxPooling2D()(ops.relu(x))
    return joined(layers.Conv2D(8, 3, strides=2)(x))


def attentive(features, is_training):
    """Attention without a mask, and without dropout."""
    x = sequences(features)
    return joined(layers.MultiHeadAttention(4, 8)(x, x))


def recurrent(features, is_training):
    """A recurrent layer."""
    return joined(layers.LSTM(16)(sequences(features)))


def adam():
    """An optimizer with two slots."""
    return keras.optimizers.Adam()


def made(model_dir, network=dense, optimizer=adam, tpu=None, batch=BATCH, **settings):
    """An estimator of a network.

    Args:
        model_dir: The directory of its files.
        network: A function of features and `is_training`. A complete `model_fn` may be
            given in the settings instead.
        optimizer: Makes an optimizer.
        tpu: Settings of `TPUConfig`.
        batch: The batch size of all modes.
        settings: Settings of `TPUEstimator`, and of `RunConfig` as `config`.
    """
    model_fn = settings.pop("model_fn", None)
    config = kte.RunConfig(
        model_dir=str(model_dir),
        tf_random_seed=7,
        tpu_config=kte.TPUConfig(**(tpu or {})),
        **{"save_summary_steps": None, **settings.pop("config", {})},
    )
    return kte.TPUEstimator(
        model_fn or model_fn_of(network, optimizer),
        config=config,
        train_batch_size=batch,
        eval_batch_size=batch,
        predict_batch_size=batch,
        **settings,
    )
