"""Metrics of the highest ranked classes."""

import dataclasses

import jax
import jax.numpy as jnp

from keras_tpu_estimator.api.metrics.accumulator import (
    Running,
    accumulate,
    as_array,
    as_classes,
    weights_like,
)
from keras_tpu_estimator.api.metrics.averages import Average
from keras_tpu_estimator.base.common.types import TensorLike


@dataclasses.dataclass(frozen=True)
class Retrieved:
    """Sums of correct, wrong and missing classes over examples, float32."""

    true_positives: jax.Array
    false_positives: jax.Array
    false_negatives: jax.Array

    @classmethod
    def from_ids(
        cls,
        labels: TensorLike,
        predictions_idx: TensorLike,
        class_id: int | None,
        weights: TensorLike | None,
    ) -> "Retrieved":
        """Counts one batch; only one class, unless `class_id` is `None`."""
        labels, ids = same_examples(labels, predictions_idx)
        if class_id is None:
            is_wanted = is_in(ids, labels)
            right = _count(is_wanted & _is_first(ids))
            wrong = _count(~is_wanted & _is_first(ids))
            missing = _count(~is_in(labels, ids) & _is_first(labels))
        else:
            is_wanted = jnp.any(labels == class_id, axis=-1)
            is_retrieved = jnp.any(ids == class_id, axis=-1)
            right = is_wanted & is_retrieved
            wrong = ~is_wanted & is_retrieved
            missing = is_wanted & ~is_retrieved
        weights = weights_like(weights, right)
        return cls(
            true_positives=jnp.sum(right * weights),
            false_positives=jnp.sum(wrong * weights),
            false_negatives=jnp.sum(missing * weights),
        )


def precision_at_k(
    labels: TensorLike,
    predictions: TensorLike,
    k: int,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Computes the share of the `k` highest scores that are correct.

    Args:
        labels: Integer tensor of shape `[..., num_labels]` with the correct
            classes of each example, or `[...]` with one. Duplicates count once;
            classes outside `[0, num_classes)` do not count.
        predictions: Float tensor of scores of shape `[..., num_classes]`.
        k: The number of highest scores that are predictions.
        class_id: The only class that counts. Defaults to `None`, for all.
        weights: Tensor that broadcasts to `[...]`. Defaults to ones.
        name: Name of the metric's variables. Defaults to `"precision_at_k"`.

    Returns:
        A pair `(value, update)`: the precision so far, a float32 scalar, twice.
        It is NaN before the first counted prediction, such as the first one of
        `class_id`.

    Raises:
        ValueError: The shapes do not fit, or `k` is larger than the number of
            classes.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> scores = [[0.1, 0.7, 0.2], [0.5, 0.1, 0.4]]
    >>> value, update = metrics.precision_at_k([1, 1], scores, k=2)
    >>> float(value)
    0.25

    Reference: `tf.compat.v1.metrics.precision_at_k`.
    """
    ids = _top_k(predictions, k)
    batch = Retrieved.from_ids(labels, ids, class_id, weights)
    return _precision(batch, name, "precision_at_k")


def precision_at_top_k(
    labels: TensorLike,
    predictions_idx: TensorLike,
    k: int | None = None,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Computes the share of predicted classes that are correct.

    Args:
        labels: As for `precision_at_k`.
        predictions_idx: Integer tensor of shape `[..., k]` with the predicted
            classes of each example.
        class_id: The only class that counts. Defaults to `None`, for all.
        weights: Tensor that broadcasts to `[...]`. Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"precision_at_top_k"`.
        k: Accepted for compatibility; the shape determines it. Defaults to
            `None`.

    Returns:
        A pair `(value, update)`, as from `precision_at_k`.

    Raises:
        ValueError: The shapes do not fit.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.precision_at_top_k([[1, 2]], [[2, 0]])
    >>> float(value)
    0.5

    Reference: `tf.compat.v1.metrics.precision_at_top_k`.
    """
    del k
    batch = Retrieved.from_ids(labels, predictions_idx, class_id, weights)
    return _precision(batch, name, "precision_at_top_k")


def recall_at_k(
    labels: TensorLike,
    predictions: TensorLike,
    k: int,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Computes the share of correct classes among the `k` highest scores.

    With one label for each example, it is the top-k accuracy.

    Args:
        labels: Integer tensor of shape `[..., num_labels]` with the correct
            classes of each example, or `[...]` with one. Duplicates count once;
            classes outside `[0, num_classes)` count as not found.
        predictions: Float tensor of scores of shape `[..., num_classes]`.
        k: The number of highest scores that are predictions.
        class_id: The only class that counts. Defaults to `None`, for all.
        weights: Tensor that broadcasts to `[...]`. Defaults to ones.
        name: Name of the metric's variables. Defaults to `"recall_at_k"`.

    Returns:
        A pair `(value, update)`: the recall so far, a float32 scalar, twice. It
        is NaN before the first counted label, such as the first one of
        `class_id`.

    Raises:
        ValueError: The shapes do not fit, or `k` is larger than the number of
            classes.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> scores = [[0.1, 0.7, 0.2], [0.5, 0.1, 0.4]]
    >>> value, update = metrics.recall_at_k([1, 1], scores, k=2)
    >>> float(value)
    0.5

    Reference: `tf.compat.v1.metrics.recall_at_k`.
    """
    ids = _top_k(predictions, k)
    batch = Retrieved.from_ids(labels, ids, class_id, weights)
    return _recall(batch, name, "recall_at_k")


def recall_at_top_k(
    labels: TensorLike,
    predictions_idx: TensorLike,
    k: int | None = None,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Computes the share of correct classes that are predicted.

    Args:
        labels: As for `recall_at_k`.
        predictions_idx: Integer tensor of shape `[..., k]` with the predicted
            classes of each example.
        class_id: The only class that counts. Defaults to `None`, for all.
        weights: Tensor that broadcasts to `[...]`. Defaults to ones.
        name: Name of the metric's variables. Defaults to `"recall_at_top_k"`.
        k: Accepted for compatibility; the shape determines it. Defaults to
            `None`.

    Returns:
        A pair `(value, update)`, as from `recall_at_k`.

    Raises:
        ValueError: The shapes do not fit.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.recall_at_top_k([[1, 2]], [[2, 0, 3]])
    >>> float(value)
    0.5

    Reference: `tf.compat.v1.metrics.recall_at_top_k`.
    """
    del k
    batch = Retrieved.from_ids(labels, predictions_idx, class_id, weights)
    return _recall(batch, name, "recall_at_top_k")


def average_precision_at_k(
    labels: TensorLike,
    predictions: TensorLike,
    k: int,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Averages the precisions at the ranks of the correct classes.

    Each of the first `k` ranks with a correct class contributes the precision
    up to that rank. The sum is divided by the number of labels, at most `k`.
    The result is the mean over examples.

    Args:
        labels: Integer tensor of shape `[..., num_labels]` with the correct
            classes of each example, or `[...]` with one. Classes outside `[0,
            num_classes)` are ignored.
        predictions: Float tensor of scores of shape `[..., num_classes]`.
        k: The number of highest scores that are predictions.
        weights: Tensor that broadcasts to `[...]`. Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"average_precision_at_k"`.

    Returns:
        A pair `(value, update)`: the mean so far, a float32 scalar, twice. It
        is NaN after an example without labels.

    Raises:
        ValueError: The shapes do not fit, or `k` is larger than the number of
            classes.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> scores = [[0.3, 0.6, 0.1], [0.5, 0.1, 0.4]]
    >>> value, update = metrics.average_precision_at_k([0, 0], scores, k=2)
    >>> float(value)
    0.75

    Reference: `tf.compat.v1.metrics.average_precision_at_k`.
    """
    predictions = as_array(predictions)
    ids = _top_k(predictions, k)
    num_classes = predictions.shape[-1]
    labels, ids = same_examples(labels, ids)
    is_wanted = is_in(ids, labels)
    precisions = jnp.cumsum(is_wanted, axis=-1) / jnp.arange(1, k + 1)
    num_labels = jnp.sum((labels >= 0) & (labels < num_classes), axis=-1)
    values = jnp.sum(precisions * is_wanted, axis=-1) / jnp.minimum(num_labels, k)
    batch = Average.from_values(values, weights)
    value = accumulate(batch, name, "average_precision_at_k").value()
    return value, value


def _precision(batch: Retrieved, name: str | None, default: str) -> Running:
    sums = accumulate(batch, name, default)
    right = sums.true_positives
    value = right / (right + sums.false_positives)
    return value, value


def _recall(batch: Retrieved, name: str | None, default: str) -> Running:
    sums = accumulate(batch, name, default)
    right = sums.true_positives
    value = right / (right + sums.false_negatives)
    return value, value


def _top_k(predictions: TensorLike, k: int) -> jax.Array:
    predictions = as_array(predictions)
    num_classes = predictions.shape[-1] if predictions.ndim else 0
    if not 1 <= k <= num_classes:
        raise ValueError(
            "`k` must be between 1 and the number of classes, the last "
            f"dimension of predictions. Received: k={k}, predictions of shape "
            f"{predictions.shape}."
        )
    return jax.lax.top_k(predictions, k)[1]


def same_examples(
    labels: TensorLike, predictions_idx: TensorLike
) -> tuple[jax.Array, jax.Array]:
    """Returns arrays of shapes `[..., num_labels]` and `[..., k]`."""
    labels = as_classes(labels)
    ids = as_classes(predictions_idx)
    original_shape = labels.shape
    if labels.ndim == ids.ndim - 1:
        labels = labels[..., None]
    if ids.ndim == 0 or labels.shape[:-1] != ids.shape[:-1]:
        raise ValueError(
            "Labels must have the shape [...] or [..., num_labels] for "
            "predictions of shape [..., k] or [..., num_classes]. Received: "
            f"labels of shape {original_shape}, predictions whose examples have shape "
            f"{ids.shape[:-1]}."
        )
    return labels, ids


def is_in(ids: jax.Array, candidates: jax.Array) -> jax.Array:
    """Returns whether elements of the last dimension are among others."""
    return jnp.any(ids[..., :, None] == candidates[..., None, :], axis=-1)


def _is_first(ids: jax.Array) -> jax.Array:
    """Returns which elements of the last dimension have no equal before them."""
    is_equal = ids[..., :, None] == ids[..., None, :]
    return ~jnp.any(jnp.tril(is_equal, k=-1), axis=-1)


def _count(condition: jax.Array) -> jax.Array:
    return jnp.sum(condition, axis=-1)
