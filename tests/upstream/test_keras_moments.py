"""Moments of normalization layers in one pass and in two."""

import jax
import keras
import numpy as np
import pytest
from keras import layers

from keras_tpu_estimator.base.upstream import keras_devices

LAYERS = {
    "batch": lambda dtype: layers.BatchNormalization(dtype=dtype),
    "group": lambda dtype: layers.GroupNormalization(2, dtype=dtype),
    "layer": lambda dtype: layers.LayerNormalization(dtype=dtype),
}
# The means of inputs with a standard deviation of 1.
MEANS = [0.0, 10.0, -100.0]


def activations(mean):
    rng = np.random.default_rng(0)
    x = rng.normal(mean, size=(64, 8, 8, 16)).astype("float32")
    return keras.ops.cast(x, "bfloat16")


def normalized(layer, x, platform):
    """A layer's outputs and state, and the gradients of its inputs."""

    def loss(x):
        y, kept = layer.stateless_call(
            [v.value for v in layer.trainable_variables],
            [v.value for v in layer.non_trainable_variables],
            x,
            **({"training": True} if kept_by(layer) else {}),
        )
        wide = keras.ops.cast(y, "float32")
        return keras.ops.sum(wide**3), (wide, kept)

    with keras_devices.on_platform(platform):
        gradient, (y, kept) = jax.grad(loss, has_aux=True)(x)
    return y, kept, keras.ops.cast(gradient, "float32")


def kept_by(layer):
    return layer.non_trainable_variables


@pytest.mark.rows(5)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kind", LAYERS)
def test_one_pass_is_as_accurate_as_two(kind, mean):
    x = activations(mean)
    layer = LAYERS[kind]("mixed_bfloat16")
    layer.build(x.shape)
    two, kept_two, slope_two = normalized(layer, x, "cpu")
    one, kept_one, slope_one = normalized(layer, x, "tpu")
    # The difference is below the resolution of bfloat16.
    np.testing.assert_allclose(one, two, rtol=2**-7, atol=2**-7)
    np.testing.assert_allclose(slope_one, slope_two, rtol=2**-5, atol=0.05)
    for own, expected in zip(kept_one, kept_two, strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-3)


def test_constants_have_no_variance():
    x = keras.ops.full((64, 3), 1000.0, "bfloat16")
    layer = LAYERS["batch"]("mixed_bfloat16")
    layer.build(x.shape)
    one, _, slope = normalized(layer, x, "tpu")
    np.testing.assert_array_equal(one, 0)
    assert np.isfinite(slope).all()


@pytest.mark.parametrize(
    ("platform", "dtype"),
    [("cpu", "mixed_bfloat16"), ("tpu", "float32")],
)
def test_other_moments_are_those_of_keras(platform, dtype):
    layer = LAYERS["layer"](dtype)
    x = keras.ops.cast(activations(10.0), layer.compute_dtype)
    layer.build(x.shape)
    told = []
    for where in (platform, "cpu"):
        with keras_devices.on_platform(where):
            told.append(str(jax.make_jaxpr(layer)(x)))
    assert told[0] == told[1]
