"""Means and variances of bfloat16 activations, in one pass over them.

Keras casts them to float32, and takes the variance in a second pass. E[x^2] -
E[x]^2 needs one, which XLA adds to what has made the activations. What it loses
in float32 is less than what these have lost in bfloat16 already: their squares
are exact, and the mean is known to 2^-24, where each of them is to 2^-9.
"""

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.ground.tracing import keras_internals

_LAYERS = (
    keras.layers.BatchNormalization,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
)
# What the layer that is called was given.
_given: contextvars.ContextVar[str] = contextvars.ContextVar("given", default="")


def in_one_pass() -> None:
    """Has Keras's layers take them so from now on, but on a CPU."""
    keras_internals.around_moments(_moments)
    for layer in _LAYERS:
        if not hasattr(layer.call, "__wrapped__"):
            layer.call = _noting(layer.call)


def _noting(call: Callable[..., Any]) -> Callable[..., Any]:
    """Has `call` of a layer say which dtype it was given."""

    @functools.wraps(call)
    def noting(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        token = _given.set(keras.backend.standardize_dtype(inputs.dtype))
        try:
            return call(self, inputs, *args, **kwargs)
        finally:
            _given.reset(token)

    return noting


def _moments(
    moments: Callable[..., tuple[jax.Array, jax.Array]],
    x: jax.Array,
    axes: Sequence[int],
    keepdims: bool = False,
    synchronized: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """What Keras's own function returns."""
    is_of_cpu = keras_internals.platform() in (None, "cpu")
    if is_of_cpu or _given.get() != "bfloat16" or x.dtype != "float32":
        return moments(x, axes, keepdims, synchronized=synchronized)
    axes = tuple(axes)
    mean = jnp.mean(x, axes, keepdims=keepdims)
    square = jnp.mean(jnp.square(x), axes, keepdims=keepdims)
    return mean, jnp.maximum(square - jnp.square(mean), 0.0)
