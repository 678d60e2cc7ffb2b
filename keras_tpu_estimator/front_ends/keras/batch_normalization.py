"""Batch normalization over the examples of all replicas."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import keras
from keras import ops

from keras_tpu_estimator.api.model_fn.batch_normalization import over_replicas
from keras_tpu_estimator.base.mesh.replica_context import (
    cross_replica_mean,
    cross_replica_sum,
)
from keras_tpu_estimator.base.upstream.keras_layers import BATCH_MOMENTS


@contextlib.contextmanager
def synchronizing(is_on: bool) -> Iterator[None]:
    """Makes layers normalize over the replicas in a `with` block, if it is on."""
    block = BATCH_MOMENTS.block(_synchronized) if is_on else contextlib.nullcontext()
    with block, over_replicas(is_on):
        yield


def _synchronized(
    moments: Any, layer: keras.layers.BatchNormalization, inputs: Any, mask: Any
) -> tuple[jax.Array, jax.Array]:
    """Returns the moments of a layer's inputs over all replicas."""
    del moments
    rank = len(inputs.shape)
    axes = [axis for axis in range(rank) if axis != layer.axis % rank]
    if mask is None:
        return _moments(inputs, axes)
    return _masked_moments(inputs, ops.expand_dims(mask, axis=-1), axes)


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
