"""Tests weights that `model_fn` assigns before it minimizes a loss."""

import keras
import numpy as np
import pytest
from helpers import estimator_of
from keras import layers, ops

import keras_tpu_estimator as kte

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(16, 2)).astype("float32")
KERNEL = np.random.default_rng(2).normal(size=(3, 2)).astype("float32")


def clipping(gradients):
    """A `model_fn` with clipped weights, like a Wasserstein critic.

    Args:
        gradients: Given an optimizer, a loss and variables, returns a train op.
    """

    def model_fn(features, labels, mode, params):
        layer = layers.Dense(
            2,
            use_bias=False,
            kernel_initializer=lambda shape, dtype: ops.array(KERNEL),
        )
        layer.build((None, 3))
        layer.kernel.assign(ops.clip(layer.kernel, -0.5, 0.5))
        loss = ops.mean((layer(features["x"]) - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=gradients(optimizer, loss, [layer.kernel]),
        )

    return model_fn


WAYS = {
    "minimize": lambda optimizer, loss, _: optimizer.minimize(loss),
    "compute_gradients": lambda optimizer, loss, variables: optimizer.apply_gradients(
        optimizer.compute_gradients(loss, variables)
    ),
}


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_taken_at_the_assigned_values(way, use_tpu, tmp_path):
    """As in TensorFlow, clipped weights also have gradients."""
    estimator = estimator_of(clipping(WAYS[way]), tmp_path, use_tpu)
    estimator.train(lambda params: iter([({"x": X}, Y)] * 3), max_steps=3)
    kernel = KERNEL
    for _ in range(3):
        kernel = np.clip(kernel, -0.5, 0.5)
        error = X @ kernel - Y
        kernel = kernel - 0.1 * X.T @ error * 2 / error.size
    np.testing.assert_allclose(
        estimator.get_variable_value("dense/kernel"), kernel, 1e-5, 1e-6
    )
