"""Metrics that are weighted means."""

import dataclasses

import jax
import jax.numpy as jnp

from keras_tpu_estimator.api.metrics.accumulator import (
    Examples,
    Running,
    accumulate,
    as_array,
    as_classes,
    ratio,
    weights_like,
)
from keras_tpu_estimator.base.common.types import TensorLike


@dataclasses.dataclass(frozen=True)
class Average:
    """A weighted sum and the sum of its weights, float32 of one shape."""

    weighted_sum: jax.Array
    total_weight: jax.Array

    @classmethod
    def from_values(cls, values: jax.Array, weights: TensorLike | None) -> "Average":
        """Returns the sums over all elements of a batch."""
        sums = cls.elementwise(values, weights)
        return cls(jnp.sum(sums.weighted_sum), jnp.sum(sums.total_weight))

    @classmethod
    def elementwise(cls, values: jax.Array, weights: TensorLike | None) -> "Average":
        """Returns separate sums for each element."""
        weights = weights_like(weights, values)
        return cls(values.astype(jnp.float32) * weights, weights)

    def value(self) -> jax.Array:
        """Returns the mean; 0 if nothing was counted."""
        return ratio(self.weighted_sum, self.total_weight)


def running_mean(
    values: jax.Array,
    weights: TensorLike | None,
    name: str | None,
    default: str,
) -> jax.Array:
    """Returns the mean of all values so far, a float32 scalar."""
    return accumulate(Average.from_values(values, weights), name, default).value()


def mean(
    values: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Averages values over all batches.

    Args:
        values: Tensor of any shape and numeric or boolean dtype.
        weights: Tensor that broadcasts to `values`. Defaults to ones.
        name: Name of the metric's variables. Defaults to `"mean"`.

    Returns:
        A pair `(value, update)`: the mean so far, a float32 scalar, twice.

    Raises:
        ValueError: The weights cannot be broadcast.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.mean([1.0, 2.0, 6.0], weights=[1, 1, 0])
    >>> float(value)
    1.5

    Reference: `tf.compat.v1.metrics.mean`.
    """
    value = running_mean(as_array(values), weights, name, "mean")
    return value, value


def mean_tensor(
    values: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Averages each element of the values over all batches.

    Args:
        values: Tensor of any numeric or boolean dtype, of the same shape in
            each batch.
        weights: Tensor that broadcasts to `values`. Defaults to ones.
        name: Name of the metric's variables. Defaults to `"mean_tensor"`.

    Returns:
        A pair `(value, update)`: the means so far, float32 of the shape of
        `values`, twice. An element without weight has mean 0.

    Raises:
        ValueError: The weights cannot be broadcast.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.mean_tensor([1.0, 2.0], weights=[0.5, 0.0])
    >>> value.tolist()
    [1.0, 0.0]

    Reference: `tf.compat.v1.metrics.mean_tensor`.
    """
    batch = Average.elementwise(as_array(values), weights)
    value = accumulate(batch, name, "mean_tensor").value()
    return value, value


def accuracy(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Computes how often predictions equal labels.

    Args:
        labels: Tensor of any shape and numeric or boolean dtype.
        predictions: Tensor of the same shape; it is cast to the dtype of
            `labels` before the comparison. One of the two may have one more
            dimension of size 1 at the end.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to `"accuracy"`.

    Returns:
        A pair `(value, update)`: the share of equal pairs so far, a float32
        scalar, twice.

    Raises:
        ValueError: The shapes do not fit.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.accuracy([1, 2, 3, 4], [1, 2, 3, 5])
    >>> float(value)
    0.75

    Reference: `tf.compat.v1.metrics.accuracy`.
    """
    examples = Examples.from_tensors(labels, predictions, weights)
    labels = as_classes(examples.labels)
    is_correct = examples.predictions.astype(labels.dtype) == labels
    value = running_mean(is_correct, examples.weights, name, "accuracy")
    return value, value


def percentage_below(
    values: TensorLike,
    threshold: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Computes the share of values that are smaller than a threshold.

    Args:
        values: Numeric tensor of any shape.
        threshold: Scalar, or tensor that broadcasts to `values`.
        weights: Tensor that broadcasts to `values`. Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"percentage_below"`.

    Returns:
        A pair `(value, update)`: the share so far, a float32 scalar in
        `[0, 1]`, twice.

    Raises:
        ValueError: The weights cannot be broadcast.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.percentage_below([1.0, 2.0, 3.0, 9.0], 3.0)
    >>> float(value)
    0.5

    Reference: `tf.compat.v1.metrics.percentage_below`.
    """
    is_below = as_array(values) < as_array(threshold)
    value = running_mean(is_below, weights, name, "percentage_below")
    return value, value
