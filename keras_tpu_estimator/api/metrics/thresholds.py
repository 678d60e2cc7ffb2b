"""Counts of correct and wrong binary predictions at several thresholds."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.api.metrics.accumulator import (
    Examples,
    Running,
    accumulate,
    nan_unless,
)
from keras_tpu_estimator.api.metrics.confusion import Confusion
from keras_tpu_estimator.base.common.types import TensorLike

# Keeps precision and recall defined if nothing was counted.
_EPSILON = 1e-7


def true_positives_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Sequence[float],
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Sums the weights of positive examples that are above each threshold.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Float tensor of the same shape, in `[0, 1]`.
        thresholds: Numbers in `[0, 1]`.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"true_positives_at_thresholds"`.

    Returns:
        A pair `(value, update)`: the sums so far, float32 of shape
        `[len(thresholds)]`, twice. In compiled code they are NaN if a
        prediction is outside `[0, 1]`.

    Raises:
        ValueError: The shapes do not fit, or a concrete prediction is outside
            `[0, 1]`.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.true_positives_at_thresholds(
    ...     [1, 1, 0], [0.4, 0.9, 0.8], thresholds=[0.2, 0.5]
    ... )
    >>> value.tolist()
    [2.0, 1.0]

    Reference: `tf.compat.v1.metrics.true_positives_at_thresholds`.
    """
    examples = Examples.from_tensors(labels, predictions, weights)
    sums = _running(examples, thresholds, name, "true_positives_at_thresholds")
    return sums.true_positives, sums.true_positives


def false_negatives_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Sequence[float],
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Sums the weights of positive examples not above each threshold.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Float tensor of the same shape, in `[0, 1]`.
        thresholds: Numbers in `[0, 1]`.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"false_negatives_at_thresholds"`.

    Returns:
        A pair `(value, update)`, as from `true_positives_at_thresholds`.

    Raises:
        ValueError: The shapes do not fit, or a concrete prediction is outside
            `[0, 1]`.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.false_negatives_at_thresholds(
    ...     [1, 1, 0], [0.4, 0.9, 0.8], thresholds=[0.2, 0.5]
    ... )
    >>> value.tolist()
    [0.0, 1.0]

    Reference: `tf.compat.v1.metrics.false_negatives_at_thresholds`.
    """
    examples = Examples.from_tensors(labels, predictions, weights)
    sums = _running(examples, thresholds, name, "false_negatives_at_thresholds")
    return sums.false_negatives, sums.false_negatives


def true_negatives_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Sequence[float],
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Sums the weights of negative examples not above each threshold.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Float tensor of the same shape, in `[0, 1]`.
        thresholds: Numbers in `[0, 1]`.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"true_negatives_at_thresholds"`.

    Returns:
        A pair `(value, update)`, as from `true_positives_at_thresholds`.

    Raises:
        ValueError: The shapes do not fit, or a concrete prediction is outside
            `[0, 1]`.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.true_negatives_at_thresholds(
    ...     [1, 0, 0], [0.9, 0.1, 0.4], thresholds=[0.2, 0.5]
    ... )
    >>> value.tolist()
    [1.0, 2.0]

    Reference: `tf.compat.v1.metrics.true_negatives_at_thresholds`.
    """
    examples = Examples.from_tensors(labels, predictions, weights)
    sums = _running(examples, thresholds, name, "true_negatives_at_thresholds")
    return sums.true_negatives, sums.true_negatives


def false_positives_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Sequence[float],
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Sums the weights of negative examples that are above each threshold.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Float tensor of the same shape, in `[0, 1]`.
        thresholds: Numbers in `[0, 1]`.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"false_positives_at_thresholds"`.

    Returns:
        A pair `(value, update)`, as from `true_positives_at_thresholds`.

    Raises:
        ValueError: The shapes do not fit, or a concrete prediction is outside
            `[0, 1]`.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.false_positives_at_thresholds(
    ...     [1, 0, 0], [0.9, 0.1, 0.4], thresholds=[0.2, 0.5]
    ... )
    >>> value.tolist()
    [1.0, 0.0]

    Reference: `tf.compat.v1.metrics.false_positives_at_thresholds`.
    """
    examples = Examples.from_tensors(labels, predictions, weights)
    sums = _running(examples, thresholds, name, "false_positives_at_thresholds")
    return sums.false_positives, sums.false_positives


def precision_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Sequence[float],
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Computes the precision at each threshold.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Float tensor of the same shape, in `[0, 1]`.
        thresholds: Numbers in `[0, 1]`.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"precision_at_thresholds"`.

    Returns:
        A pair `(value, update)`: the precisions so far, float32 of shape
        `[len(thresholds)]`, twice. In compiled code they are NaN if a
        prediction is outside `[0, 1]`.

    Raises:
        ValueError: The shapes do not fit, or a concrete prediction is outside
            `[0, 1]`.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.precision_at_thresholds(
    ...     [1, 1, 0, 0], [0.4, 0.9, 0.8, 0.3], thresholds=[0.2, 0.85]
    ... )
    >>> [round(precision, 4) for precision in value.tolist()]
    [0.5, 1.0]

    Reference: `tf.compat.v1.metrics.precision_at_thresholds`.
    """
    examples = Examples.from_tensors(labels, predictions, weights)
    sums = _running(examples, thresholds, name, "precision_at_thresholds")
    right = sums.true_positives
    value = right / (_EPSILON + right + sums.false_positives)
    return value, value


def recall_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Sequence[float],
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Computes the recall at each threshold.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Float tensor of the same shape, in `[0, 1]`.
        thresholds: Numbers in `[0, 1]`.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"recall_at_thresholds"`.

    Returns:
        A pair `(value, update)`: the recalls so far, float32 of shape
        `[len(thresholds)]`, twice. In compiled code they are NaN if a
        prediction is outside `[0, 1]`.

    Raises:
        ValueError: The shapes do not fit, or a concrete prediction is outside
            `[0, 1]`.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.recall_at_thresholds(
    ...     [1, 1, 0, 0], [0.4, 0.9, 0.8, 0.3], thresholds=[0.2, 0.85]
    ... )
    >>> [round(recall, 4) for recall in value.tolist()]
    [1.0, 0.5]

    Reference: `tf.compat.v1.metrics.recall_at_thresholds`.
    """
    examples = Examples.from_tensors(labels, predictions, weights)
    sums = _running(examples, thresholds, name, "recall_at_thresholds")
    positives = sums.true_positives
    value = positives / (_EPSILON + positives + sums.false_negatives)
    return value, value


def _running(
    examples: Examples,
    thresholds: Sequence[float],
    name: str | None,
    default: str,
) -> Confusion:
    return accumulate(confusion_at(examples, thresholds), name, default)


def confusion_at(examples: Examples, thresholds: Sequence[float]) -> Confusion:
    """Counts one batch; probabilities above a threshold are positive."""
    examples = examples.flat()
    predictions = examples.predictions.astype(jnp.float32)
    invalid = nan_unless(
        (predictions >= 0) & (predictions <= 1),
        "predictions must be in [0, 1]. Pass probabilities, such as "
        "ops.sigmoid(logits).",
    )
    # Bisection compares each prediction with a few thresholds only; the sums
    # over intervals are then combined for each threshold.
    points = np.asarray(thresholds, np.float32)
    edges = np.sort(points)
    interval = jnp.searchsorted(edges, predictions)
    intervals = np.arange(edges.size + 1)
    is_above = intervals > np.searchsorted(edges, points)[:, None]

    def weight_of(condition: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights = jnp.where(condition, examples.weights, 0)
        sums = jnp.bincount(interval, weights, length=intervals.size)
        # A running sum would round differently at two thresholds without a
        # prediction in between, so that the best one would be arbitrary.
        above = jnp.sum(jnp.where(is_above, sums, 0), axis=1)
        below = jnp.sum(jnp.where(is_above, 0, sums), axis=1)
        return above + invalid, below + invalid

    is_positive = examples.labels.astype(bool)
    true_positives, false_negatives = weight_of(is_positive)
    false_positives, true_negatives = weight_of(~is_positive)
    return Confusion(true_positives, false_negatives, true_negatives, false_positives)
