"""Batch normalization whose moving variance is TensorFlow 1's."""

import keras
import numpy as np
import pytest

import keras_tpu_estimator as kte

IMAGES = np.random.default_rng(0).normal(size=(2, 5, 4, 3)).astype("float32")


def test_averages_are_those_of_the_fused_operation() -> None:
    import tensorflow as tf

    layer = kte.BatchNormalization(momentum=0.9)
    outputs = layer(IMAGES, training=True)
    y, mean, variance = tf.compat.v1.nn.fused_batch_norm(
        IMAGES, tf.ones(3), tf.zeros(3), epsilon=1e-3
    )
    np.testing.assert_allclose(outputs, y, rtol=1e-5, atol=1e-5)
    expected = 0.9 + 0.1 * np.asarray(variance)
    np.testing.assert_allclose(layer.moving_variance.numpy(), expected, rtol=1e-6)
    expected = 0.1 * np.asarray(mean)
    np.testing.assert_allclose(layer.moving_mean.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "fused", "has_factor"),
    [
        ((40, 3), None, False),
        ((40, 3), True, True),
        ((2, 5, 4, 3), None, True),
        ((2, 5, 4, 3), False, False),
        # Other than tf-keras, TensorFlow 1.15 does not fuse volumes.
        ((2, 5, 2, 2, 3), None, False),
    ],
    ids=str,
)
def test_fused_operations_have_the_factor(shape, fused, has_factor) -> None:
    layer = kte.BatchNormalization(momentum=0.0, fused=fused)
    layer(IMAGES.reshape(shape), training=True)
    expected = IMAGES.reshape(40, 3).var(axis=0, ddof=int(has_factor))
    np.testing.assert_allclose(layer.moving_variance.numpy(), expected, rtol=1e-5)


def test_averages_stay_in_evaluation() -> None:
    layer = kte.BatchNormalization()
    layer(IMAGES, training=False)
    assert layer.moving_variance.numpy().tolist() == [1.0] * 3


def test_layer_is_saved_with_its_arguments() -> None:
    layer = kte.BatchNormalization(axis=1, fused=False)
    copy = keras.layers.deserialize(keras.layers.serialize(layer))
    assert isinstance(copy, kte.BatchNormalization)
    assert (copy.axis, copy.fused) == (1, False)
