"""Metrics of predicted numbers."""

import jax
import jax.numpy as jnp

from keras_tpu_estimator.api.metrics.accumulator import Examples, Running, same_rank
from keras_tpu_estimator.api.metrics.averages import running_mean
from keras_tpu_estimator.base.common.types import TensorLike


def mean_absolute_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Averages the absolute differences between predictions and labels.

    Args:
        labels: Numeric tensor of any shape.
        predictions: Tensor of the same shape. One of the two may have one more
            dimension of size 1 at the end.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"mean_absolute_error"`.

    Returns:
        A pair `(value, update)`: the mean so far, a float32 scalar, twice.

    Raises:
        ValueError: The shapes do not fit.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.mean_absolute_error([1.0, 2.0], [2.0, 5.0])
    >>> float(value)
    2.0

    Reference: `tf.compat.v1.metrics.mean_absolute_error`.
    """
    examples = Examples.from_tensors(labels, predictions, weights)
    error = jnp.abs(_difference(examples))
    value = running_mean(error, examples.weights, name, "mean_absolute_error")
    return value, value


def mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Averages the squared differences between predictions and labels.

    Args:
        labels: Numeric tensor of any shape.
        predictions: Tensor of the same shape. One of the two may have one more
            dimension of size 1 at the end.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"mean_squared_error"`.

    Returns:
        A pair `(value, update)`: the mean so far, a float32 scalar, twice.

    Raises:
        ValueError: The shapes do not fit.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.mean_squared_error([1.0, 2.0], [2.0, 5.0])
    >>> float(value)
    5.0

    Reference: `tf.compat.v1.metrics.mean_squared_error`.
    """
    examples = Examples.from_tensors(labels, predictions, weights)
    error = jnp.square(_difference(examples))
    value = running_mean(error, examples.weights, name, "mean_squared_error")
    return value, value


def root_mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Computes the root of the mean squared error over all batches.

    Args:
        labels: Numeric tensor of any shape.
        predictions: Tensor of the same shape. One of the two may have one more
            dimension of size 1 at the end.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"root_mean_squared_error"`.

    Returns:
        A pair `(value, update)`: the root so far, a float32 scalar, twice.

    Raises:
        ValueError: The shapes do not fit.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.root_mean_squared_error([3.0], [7.0])
    >>> float(value)
    4.0

    Reference: `tf.compat.v1.metrics.root_mean_squared_error`.
    """
    examples = Examples.from_tensors(labels, predictions, weights)
    error = jnp.square(_difference(examples))
    value = jnp.sqrt(
        running_mean(error, examples.weights, name, "root_mean_squared_error")
    )
    return value, value


def mean_relative_error(
    labels: TensorLike,
    predictions: TensorLike,
    normalizer: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Averages absolute differences, relative to a normalizer.

    Args:
        labels: Numeric tensor of any shape.
        predictions: Tensor of the same shape. One of the two may have one more
            dimension of size 1 at the end.
        normalizer: Tensor of the same shape, by which the distances are
            divided; where it is 0, the error counts as 0.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"mean_relative_error"`.

    Returns:
        A pair `(value, update)`: the mean so far, a float32 scalar, twice.

    Raises:
        ValueError: The shapes do not fit.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.mean_relative_error(
    ...     labels=[4.0, 2.0], predictions=[3.0, 5.0], normalizer=[4.0, 0.0]
    ... )
    >>> float(value)
    0.125

    Reference: `tf.compat.v1.metrics.mean_relative_error`.
    """
    examples = Examples.from_tensors(labels, predictions, weights)
    normalizer, predicted = same_rank(normalizer, examples.predictions)
    if normalizer.shape != predicted.shape:
        raise ValueError(
            "`normalizer` must have the shape of the predictions, "
            f"{predicted.shape}. Received: a normalizer of shape "
            f"{normalizer.shape}. Use jnp.broadcast_to."
        )
    is_zero = normalizer == 0
    error = jnp.abs(_difference(examples)) / jnp.where(is_zero, 1, normalizer)
    error = jnp.where(is_zero, 0, error)
    value = running_mean(error, examples.weights, name, "mean_relative_error")
    return value, value


def mean_cosine_distance(
    labels: TensorLike,
    predictions: TensorLike,
    dim: int,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Running:
    """Averages the cosine distance of unit vectors.

    Args:
        labels: Numeric tensor of any shape, whose vectors along `dim` have
            length 1; they are not normalized here.
        predictions: Tensor of the same shape. One of the two may have one more
            dimension of size 1 at the end.
        dim: The dimension of the vectors.
        weights: Tensor that broadcasts to `labels` with size 1 at `dim`.
            Defaults to ones.
        name: Name of the metric's variables. Defaults to
            `"mean_cosine_distance"`.

    Returns:
        A pair `(value, update)`: 1 minus the mean cosine so far, a float32
        scalar, twice.

    Raises:
        ValueError: The shapes do not fit.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.mean_cosine_distance(
    ...     [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]], dim=1
    ... )
    >>> float(value)
    0.5

    Reference: `tf.compat.v1.metrics.mean_cosine_distance`.
    """
    examples = Examples.from_tensors(labels, predictions, None)
    products = examples.labels * examples.predictions
    cosines = jnp.sum(products, axis=dim, keepdims=True)
    value = 1 - running_mean(cosines, weights, name, "mean_cosine_distance")
    return value, value


def _difference(examples: Examples) -> jax.Array:
    # Differences are computed in float32, because those of small unsigned labels would
    # wrap around.
    return examples.predictions.astype(jnp.float32) - examples.labels.astype(
        jnp.float32
    )
