"""Sums over batches, and the inputs of metrics."""

import dataclasses
from typing import TYPE_CHECKING, TypeVar

import jax
import keras

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

import jax.numpy as jnp
from keras import ops

from keras_tpu_estimator.base.common.types import TensorLike

# The value over all batches so far, twice for most metrics, because code
# written for graphs expects a tensor to read and an operation to run.
Running = tuple[jax.Array, jax.Array]
Sums = TypeVar("Sums", bound="DataclassInstance")


class Accumulator(keras.metrics.Metric):
    """A metric that is a record of sums over examples, so that batches and cores can be
    added up in any order, with one variable for each field.

    If variables live by path, as in a `metric_fn`, an accumulator continues from the
    totals of the last batch; elsewhere it starts from zero. `name` is the prefix of the
    paths.
    """

    def __init__(self, name: str):
        super().__init__(dtype="float32", name=name)
        self._totals: dict[str, keras.Variable] = {}

    def add(self, batch: Sums) -> Sums:
        """Adds a batch's record of float32 arrays, of the same shapes each time, and
        returns the totals.
        """
        names = [field.name for field in dataclasses.fields(batch)]
        return type(batch)(**{n: self._add(n, getattr(batch, n)) for n in names})

    def _add(self, name: str, value: jax.Array) -> jax.Array:
        if name not in self._totals:
            self._totals[name] = self.add_variable(
                value.shape, initializer="zeros", dtype="float32", name=name
            )
        total = self._totals[name].value + value
        self._totals[name].assign(total)
        return total


def accumulate(batch: Sums, name: str | None, default: str) -> Sums:
    """Adds a batch to the totals of the metric that is being called."""
    if name is None:
        uses = keras.backend.get_uid(default)
        name = default if uses == 1 else f"{default}_{uses - 1}"
    return Accumulator(name).add(batch)


@dataclasses.dataclass(frozen=True)
class Examples:
    """Labels, predictions and float32 weights of one shape."""

    labels: jax.Array
    predictions: jax.Array
    weights: jax.Array

    @classmethod
    def from_tensors(
        cls,
        labels: TensorLike,
        predictions: TensorLike,
        weights: TensorLike | None,
    ) -> "Examples":
        """Converts a metric's arguments to arrays of one shape."""
        labels, predictions = same_rank(labels, predictions)
        if labels.shape != predictions.shape:
            raise ValueError(
                "Labels and predictions must have one shape, except for a last "
                "dimension of size 1. Received: labels of shape "
                f"{labels.shape}, predictions of shape {predictions.shape}. "
                "Pass class ids, such as ops.argmax(logits, axis=-1), with "
                "class ids, and probabilities with 0/1 labels."
            )
        return cls(labels, predictions, weights_like(weights, predictions))

    def flat(self) -> "Examples":
        """Returns these examples as vectors."""
        return Examples(
            self.labels.ravel(), self.predictions.ravel(), self.weights.ravel()
        )


def as_array(tensor: TensorLike) -> jax.Array:
    """Returns a user's tensor as an array."""
    return ops.convert_to_tensor(tensor)


def as_classes(tensor: TensorLike) -> jax.Array:
    """Returns class ids in an integer dtype."""
    classes = as_array(tensor)
    is_narrow = jnp.issubdtype(classes.dtype, jnp.integer) and (
        classes.dtype.itemsize < 4
    )
    return classes.astype(jnp.int32) if is_narrow else classes


def same_rank(first: TensorLike, second: TensorLike) -> tuple[jax.Array, jax.Array]:
    """Drops a last dimension of size 1 that only one of two tensors has."""
    first, second = as_array(first), as_array(second)
    if first.ndim == second.ndim + 1 and first.shape[-1] == 1:
        first = first[..., 0]
    elif second.ndim == first.ndim + 1 and second.shape[-1] == 1:
        second = second[..., 0]
    return first, second


def weights_like(weights: TensorLike | None, values: jax.Array) -> jax.Array:
    """Broadcasts weights to the shape of `values`, as float32. They are `None` for
    ones, a scalar, or a tensor whose dimensions equal those of `values` or are 1; the
    last dimension may be missing, or followed by another of size 1.
    """
    if weights is None:
        return jnp.ones(values.shape, jnp.float32)
    weights = as_array(weights).astype(jnp.float32)
    original_shape = weights.shape
    if weights.ndim == values.ndim + 1 and original_shape[-1] == 1:
        weights = weights[..., 0]
    elif 0 < weights.ndim == values.ndim - 1:
        weights = weights[..., None]
    fits = weights.ndim in (0, values.ndim) and all(
        size in (1, expected)
        for size, expected in zip(weights.shape, values.shape, strict=False)
    )
    if not fits:
        raise ValueError(
            "Weights must be a scalar, or have the rank of the values, with "
            "each dimension equal to theirs or 1. Received: weights of shape "
            f"{original_shape} for values of shape {values.shape}. Reshape them."
        )
    return jnp.broadcast_to(weights, values.shape)


def nan_unless(is_valid: jax.Array, problem: str) -> jax.Array:
    """Returns 0, or NaN if values are invalid; raises an error outside of traces."""
    all_valid = jnp.all(is_valid)
    if not isinstance(all_valid, jax.core.Tracer) and not all_valid:
        raise ValueError(problem)
    return jnp.where(all_valid, 0.0, jnp.nan)


def check_fraction(name: str, value: float) -> None:
    """Checks that an argument lies between 0 and 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"`{name}` must be in the range [0, 1]. Received: {value}")


def ratio(part: jax.Array, total: jax.Array) -> jax.Array:
    """Divides two sums elementwise; returns 0 unless `total`, which negative weights
    can make negative, is positive. NaN stays NaN.
    """
    return ops.divide_no_nan(part, jnp.maximum(total, 0))
