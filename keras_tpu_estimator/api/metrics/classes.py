"""Metrics of several classes."""

import dataclasses

import jax
import jax.numpy as jnp

from keras_tpu_estimator.api.metrics.accumulator import (
    Examples,
    Running,
    accumulate,
    nan_unless,
    ratio,
)
from keras_tpu_estimator.base.common.types import TensorLike


@dataclasses.dataclass(frozen=True)
class ClassSums:
    """Sums of weights by class, float32 of shape `[num_classes]`."""

    total: jax.Array
    correct: jax.Array

    @classmethod
    def from_examples(cls, examples: Examples, num_classes: int) -> "ClassSums":
        """Counts one batch of class ids."""
        examples = examples.flat()
        labels = examples.labels.astype(jnp.int32)
        is_correct = examples.predictions.astype(jnp.int32) == labels
        invalid = _nan_unless_class_ids(labels, num_classes, "labels")

        def by_class(weights: jax.Array) -> jax.Array:
            return jnp.bincount(labels, weights, length=num_classes) + invalid

        return cls(
            total=by_class(examples.weights),
            correct=by_class(jnp.where(is_correct, examples.weights, 0)),
        )

    def accuracies(self) -> jax.Array:
        """Returns the accuracy of each class; 0 for one without examples."""
        return ratio(self.correct, self.total)


@dataclasses.dataclass(frozen=True)
class ConfusionMatrix:
    """Sums of weights by label (row) and prediction (column), in float32, exact up to
    2**24 examples of weight 1 in a cell.
    """

    total_confusion_matrix: jax.Array

    @classmethod
    def from_examples(cls, examples: Examples, num_classes: int) -> "ConfusionMatrix":
        """Counts one batch of class ids."""
        examples = examples.flat()
        labels = examples.labels.astype(jnp.int32)
        predictions = examples.predictions.astype(jnp.int32)
        cells = jnp.bincount(
            labels * num_classes + predictions,
            examples.weights,
            length=num_classes**2,
        )
        invalid = _nan_unless_class_ids(labels, num_classes, "labels")
        invalid += _nan_unless_class_ids(predictions, num_classes, "predictions")
        return cls(cells.reshape(num_classes, num_classes) + invalid)

    def mean_iou(self) -> jax.Array:
        """Returns the mean intersection over union of the classes that occur."""
        matrix = self.total_confusion_matrix
        intersection = jnp.diagonal(matrix)
        union = matrix.sum(axis=0) + matrix.sum(axis=1) - intersection
        iou = intersection / jnp.where(union > 0, union, 1)
        return ratio(jnp.sum(iou), jnp.sum(union != 0))


def mean_per_class_accuracy(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Averages the accuracies of all classes, regardless of their sizes.

    Args:
        labels: Integer tensor of any shape, in `[0, num_classes)`.
        predictions: Tensor of class ids of the same shape.
        num_classes: Number of classes. One that never occurs has accuracy 0.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"mean_per_class_accuracy"`.

    Returns:
        A pair `(value, update)`: the mean so far, a float32 scalar, and the
        accuracies that it averages, of shape `[num_classes]`. In compiled code
        they are NaN if a label is out of range.

    Raises:
        ValueError: The shapes do not fit, or a label is known and out of
            range.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.mean_per_class_accuracy(
    ...     [0, 0, 0, 1], [0, 0, 0, 0], num_classes=2
    ... )
    >>> float(value), update.tolist()
    (0.5, [1.0, 0.0])

    Reference: `tf.compat.v1.metrics.mean_per_class_accuracy`.
    """
    examples = Examples.from_tensors(labels, predictions, weights)
    batch = ClassSums.from_examples(examples, num_classes)
    sums = accumulate(batch, name, "mean_per_class_accuracy")
    accuracies = sums.accuracies()
    return jnp.mean(accuracies), accuracies


def mean_iou(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Averages the intersection over union of classes, for segmentation.

    For one class it is the number of pixels that have the class and are
    predicted as it, divided by the number that have it or are predicted as it.
    Classes that neither occur nor are predicted do not count.

    Args:
        labels: Integer tensor of any shape, in `[0, num_classes)`. Give pixels
            to be ignored any label in this range and weight 0.
        predictions: Tensor of class ids of the same shape and range.
        num_classes: Number of classes.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to `"mean_iou"`.

    Returns:
        A pair `(value, update)`: the mean so far, a float32 scalar, and the
        confusion matrix so far, of shape `[num_classes, num_classes]`, with
        labels as rows. In compiled code they are NaN if a class id is out of
        range.

    Raises:
        ValueError: The shapes do not fit, or a class id is known and out of
            range.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.mean_iou(
    ...     [[0, 0], [1, 1]], [[0, 0], [0, 1]], num_classes=2
    ... )
    >>> round(float(value), 4), update.tolist()
    (0.5833, [[2.0, 0.0], [1.0, 1.0]])

    Reference: `tf.compat.v1.metrics.mean_iou`.
    """
    examples = Examples.from_tensors(labels, predictions, weights)
    batch = ConfusionMatrix.from_examples(examples, num_classes)
    sums = accumulate(batch, name, "mean_iou")
    return sums.mean_iou(), sums.total_confusion_matrix


def _nan_unless_class_ids(ids: jax.Array, num_classes: int, name: str) -> jax.Array:
    return nan_unless(
        (ids >= 0) & (ids < num_classes),
        f"{name} must be class ids in [0, {num_classes}). To ignore examples, "
        "give them a class id in this range and weight 0.",
    )
