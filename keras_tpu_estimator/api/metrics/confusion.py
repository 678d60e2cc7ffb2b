"""Counts of correct and wrong binary predictions."""

import dataclasses

import jax
import jax.numpy as jnp

from keras_tpu_estimator.api.metrics.accumulator import (
    Examples,
    Running,
    accumulate,
    ratio,
)
from keras_tpu_estimator.base.common.types import TensorLike


@dataclasses.dataclass(frozen=True)
class Confusion:
    """Sums of weights by label and prediction, in float32: scalars, or vectors with one
    element for each threshold.
    """

    true_positives: jax.Array
    false_negatives: jax.Array
    true_negatives: jax.Array
    false_positives: jax.Array

    @classmethod
    def from_examples(cls, examples: Examples) -> "Confusion":
        """Counts one batch; nonzero values are positive."""
        label = examples.labels.astype(bool)
        prediction = examples.predictions.astype(bool)

        def weight_of(condition: jax.Array) -> jax.Array:
            return jnp.sum(jnp.where(condition, examples.weights, 0))

        return cls(
            true_positives=weight_of(label & prediction),
            false_negatives=weight_of(label & ~prediction),
            true_negatives=weight_of(~label & ~prediction),
            false_positives=weight_of(~label & prediction),
        )


def true_positives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Sums the weights of positive examples that are predicted as positive.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Tensor of the same shape, read in the same way: decisions,
            not probabilities.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to `"true_positives"`.

    Returns:
        A pair `(value, update)`: the sum so far, a float32 scalar, twice.

    Raises:
        ValueError: The shapes do not fit.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.true_positives([1, 1, 1, 0], [1, 1, 0, 0])
    >>> float(value)
    2.0

    Reference: `tf.compat.v1.metrics.true_positives`.
    """
    sums = _running(labels, predictions, weights, name, "true_positives")
    return sums.true_positives, sums.true_positives


def false_negatives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Sums the weights of positive examples that are predicted as negative.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Tensor of the same shape, read in the same way.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to `"false_negatives"`.

    Returns:
        A pair `(value, update)`: the sum so far, a float32 scalar, twice.

    Raises:
        ValueError: The shapes do not fit.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.false_negatives([1, 1, 1, 0], [1, 1, 0, 0])
    >>> float(value)
    1.0

    Reference: `tf.compat.v1.metrics.false_negatives`.
    """
    sums = _running(labels, predictions, weights, name, "false_negatives")
    return sums.false_negatives, sums.false_negatives


def true_negatives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Sums the weights of negative examples that are predicted as negative.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Tensor of the same shape, read in the same way.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to `"true_negatives"`.

    Returns:
        A pair `(value, update)`: the sum so far, a float32 scalar, twice.

    Raises:
        ValueError: The shapes do not fit.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.true_negatives([0, 0, 0, 1], [1, 0, 0, 1])
    >>> float(value)
    2.0

    Reference: `tf.compat.v1.metrics.true_negatives`.
    """
    sums = _running(labels, predictions, weights, name, "true_negatives")
    return sums.true_negatives, sums.true_negatives


def false_positives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Sums the weights of negative examples that are predicted as positive.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Tensor of the same shape, read in the same way.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to `"false_positives"`.

    Returns:
        A pair `(value, update)`: the sum so far, a float32 scalar, twice.

    Raises:
        ValueError: The shapes do not fit.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.false_positives([0, 0, 0, 1], [1, 0, 0, 1])
    >>> float(value)
    1.0

    Reference: `tf.compat.v1.metrics.false_positives`.
    """
    sums = _running(labels, predictions, weights, name, "false_positives")
    return sums.false_positives, sums.false_positives


def precision(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Computes the share of positive predictions that are correct.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Tensor of the same shape, read in the same way: decisions,
            not probabilities.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to `"precision"`.

    Returns:
        A pair `(value, update)`: the precision so far, a float32 scalar, twice.
        It is 0 before the first positive prediction.

    Raises:
        ValueError: The shapes do not fit.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.precision([1, 0, 0, 1], [1, 0, 1, 1])
    >>> round(float(value), 4)
    0.6667

    Reference: `tf.compat.v1.metrics.precision`.
    """
    sums = _running(labels, predictions, weights, name, "precision")
    right = sums.true_positives
    value = ratio(right, right + sums.false_positives)
    return value, value


def recall(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Computes the share of positive examples that are predicted as positive.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Tensor of the same shape, read in the same way: decisions,
            not probabilities.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to `"recall"`.

    Returns:
        A pair `(value, update)`: the recall so far, a float32 scalar, twice. It
        is 0 before the first positive example.

    Raises:
        ValueError: The shapes do not fit.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.recall([1, 0, 1, 1], [1, 0, 1, 0])
    >>> round(float(value), 4)
    0.6667

    Reference: `tf.compat.v1.metrics.recall`.
    """
    sums = _running(labels, predictions, weights, name, "recall")
    positives = sums.true_positives
    value = ratio(positives, positives + sums.false_negatives)
    return value, value


def _running(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None,
    name: str | None,
    default: str,
) -> Confusion:
    examples = Examples.from_tensors(labels, predictions, weights)
    return accumulate(Confusion.from_examples(examples), name, default)
