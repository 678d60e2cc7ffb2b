"""Batch normalization over the examples of all replicas."""

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import Any

import jax
import keras
from keras import ops

from keras_tpu_estimator.base.mesh.replica_context import (
    cross_replica_mean,
    cross_replica_sum,
)

_is_on: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "synchronizes", default=False
)


@contextlib.contextmanager
def synchronizing(is_on: bool) -> Iterator[None]:
    """Makes layers normalize over the replicas in a `with` block, if it is on."""
    if is_on:
        _install()
    token = _is_on.set(is_on)
    try:
        yield
    finally:
        _is_on.reset(token)


@functools.cache
def _install() -> None:
    """Replaces the moments of the layer, because Keras on JAX does not synchronize
    them; once.
    """
    layer: Any = keras.layers.BatchNormalization
    own = layer._moments

    @functools.wraps(own)
    def moments(self: Any, inputs: Any, mask: Any) -> tuple[jax.Array, jax.Array]:
        if not _is_on.get():
            result: tuple[jax.Array, jax.Array] = own(self, inputs, mask)
            return result
        rank = len(inputs.shape)
        axes = [axis for axis in range(rank) if axis != self.axis % rank]
        if mask is None:
            return _moments(inputs, axes)
        return _masked_moments(inputs, ops.expand_dims(mask, axis=-1), axes)

    layer._moments = moments


def _moments(inputs: jax.Array, axes: list[int]) -> tuple[jax.Array, jax.Array]:
    """Returns the mean and variance over replicas with equally many examples."""
    mean = cross_replica_mean(ops.mean(inputs, axes, keepdims=True))
    variance = cross_replica_mean(ops.mean(ops.square(inputs - mean), axes))
    return ops.squeeze(mean, axes), variance


def _masked_moments(
    inputs: jax.Array, mask: jax.Array, axes: list[int]
) -> tuple[jax.Array, jax.Array]:
    """Returns the mean and variance where the mask is true, as Keras computes them."""

    def total(values: jax.Array) -> jax.Array:
        return cross_replica_sum(ops.sum(values, axes, keepdims=True))

    mask = ops.broadcast_to(ops.cast(mask, "bool"), inputs.shape)
    count = total(ops.cast(mask, inputs.dtype)) + keras.backend.epsilon()
    mean = total(ops.where(mask, inputs, 0)) / count
    variance = total(ops.square(ops.where(mask, inputs - mean, 0))) / count
    return ops.squeeze(mean, axes), ops.squeeze(variance, axes)
