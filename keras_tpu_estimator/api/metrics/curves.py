"""Areas under curves of thresholds, and points on them."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from keras_tpu_estimator.api.metrics.accumulator import (
    Examples,
    Running,
    accumulate,
    check_fraction,
    ratio,
)
from keras_tpu_estimator.api.metrics.confusion import Confusion
from keras_tpu_estimator.api.metrics.thresholds import confusion_at
from keras_tpu_estimator.base.common.types import TensorLike

# The distance of the first and last thresholds from all predictions. It is also
# added to divisors that may be zero.
_MARGIN = 1e-7
# Added to the sums that the area is computed from, as in TensorFlow.
_AUC_EPSILON = 1e-6

_CURVES = ("ROC", "PR")
_HEIGHTS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "trapezoidal": lambda first, second: (first + second) / 2,
    "careful_interpolation": lambda first, second: (first + second) / 2,
    "minoring": jnp.minimum,
    "majoring": jnp.maximum,
}


def auc(  # noqa: PLR0913 - the original's arguments
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    curve: str = "ROC",
    name: str | None = None,
    summation_method: str = "trapezoidal",
    thresholds: Sequence[float] | None = None,
) -> Running:
    """Approximates the area under the ROC or the precision-recall curve.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Float tensor of the same shape, in `[0, 1]`.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        num_thresholds: Number of points of the curve, evenly spaced in the
            threshold. Defaults to 200; at least 2.
        curve: `"ROC"` (the default), the true positive rate over the false
            positive rate, or `"PR"`, precision over recall.
        name: Name of the metric's variables. Defaults to `"auc"`.
        summation_method: The height of the curve between two points:
            `"trapezoidal"` (the default) is their mean, `"minoring"` the lower
            and `"majoring"` the higher one. `"careful_interpolation"` equals
            `"trapezoidal"` for ROC. For PR it interpolates the counts, not
            their ratios (Davis and Goadrich, 2006); use it there, because the
            others are biased.
        thresholds: Numbers in `[0, 1]` to use instead of evenly spaced ones;
            one below 0 and one above 1 are added. Defaults to `None`.

    Returns:
        A pair `(value, update)`: the area so far, a float32 scalar, twice. In
        compiled code it is NaN if a prediction is outside `[0, 1]`.

    Raises:
        ValueError: The shapes do not fit, an option is unknown, or a concrete
            prediction is outside `[0, 1]`.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.auc([0, 0, 1, 1], [0.1, 0.6, 0.4, 0.8])
    >>> round(float(value), 4)
    0.75

    Reference: `tf.compat.v1.metrics.auc`.
    """
    _check_option("curve", curve, _CURVES)
    _check_option("summation_method", summation_method, tuple(_HEIGHTS))
    if thresholds is None:
        thresholds = _evenly_spaced(num_thresholds)
    thresholds = [-_MARGIN, *sorted(thresholds), 1 + _MARGIN]
    examples = Examples.from_tensors(labels, predictions, weights)
    sums = accumulate(confusion_at(examples, thresholds), name, "auc")
    value = _area(sums, curve, summation_method)
    return value, value


def sensitivity_at_specificity(
    labels: TensorLike,
    predictions: TensorLike,
    specificity: float,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    name: str | None = None,
) -> Running:
    """Computes the recall at the threshold that yields a specificity.

    Specificity is the share of negative examples that are predicted as
    negative.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Float tensor of the same shape, in `[0, 1]`.
        specificity: In `[0, 1]`. The threshold with the closest specificity is
            used.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        num_thresholds: Number of evenly spaced thresholds. Defaults to 200; at
            least 2.
        name: Name of the metric's variables. Defaults to
            `"sensitivity_at_specificity"`.

    Returns:
        A pair `(value, update)`: the recall so far, a float32 scalar, twice. In
        compiled code it is NaN if a prediction is outside `[0, 1]`.

    Raises:
        ValueError: The shapes do not fit, or `specificity` or a concrete
            prediction is outside `[0, 1]`.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.sensitivity_at_specificity(
    ...     [0, 0, 1, 1], [0.1, 0.6, 0.4, 0.8], specificity=0.5
    ... )
    >>> round(float(value), 4)
    1.0

    Reference: `tf.compat.v1.metrics.sensitivity_at_specificity`.
    """
    check_fraction("specificity", specificity)
    thresholds = [-_MARGIN, *_evenly_spaced(num_thresholds), 1 + _MARGIN]
    examples = Examples.from_tensors(labels, predictions, weights)
    batch = confusion_at(examples, thresholds)
    sums = accumulate(batch, name, "sensitivity_at_specificity")
    distances = jnp.abs(_specificities(sums) - specificity)
    # If several thresholds are equally close, the lowest one counts.
    value = _sensitivities(sums)[jnp.argmin(distances)]
    return value, value


def specificity_at_sensitivity(
    labels: TensorLike,
    predictions: TensorLike,
    sensitivity: float,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    name: str | None = None,
) -> Running:
    """Computes the specificity at the threshold that yields a recall.

    Specificity is the share of negative examples that are predicted as
    negative; sensitivity is recall.

    Args:
        labels: Tensor of any shape. Zero is negative, other values are
            positive.
        predictions: Float tensor of the same shape, in `[0, 1]`.
        sensitivity: In `[0, 1]`. The threshold with the closest recall is used.
        weights: Tensor that broadcasts to `labels`. Defaults to ones.
        num_thresholds: Number of evenly spaced thresholds. Defaults to 200; at
            least 2.
        name: Name of the metric's variables. Defaults to
            `"specificity_at_sensitivity"`.

    Returns:
        A pair `(value, update)`: the specificity so far, a float32 scalar,
        twice. In compiled code it is NaN if a prediction is outside `[0, 1]`.

    Raises:
        ValueError: The shapes do not fit, or `sensitivity` or a concrete
            prediction is outside `[0, 1]`.

    Example:

    >>> from keras_tpu_estimator import metrics
    >>> value, update = metrics.specificity_at_sensitivity(
    ...     [0, 0, 1, 1], [0.1, 0.6, 0.4, 0.8], sensitivity=0.5
    ... )
    >>> round(float(value), 4)
    1.0

    Reference: `tf.compat.v1.metrics.specificity_at_sensitivity`.
    """
    check_fraction("sensitivity", sensitivity)
    thresholds = [-_MARGIN, *_evenly_spaced(num_thresholds), 1 - _MARGIN]
    examples = Examples.from_tensors(labels, predictions, weights)
    batch = confusion_at(examples, thresholds)
    sums = accumulate(batch, name, "specificity_at_sensitivity")
    distances = jnp.abs(_sensitivities(sums) - sensitivity)
    # If several thresholds are equally close, the highest one counts.
    closest = len(thresholds) - 1 - jnp.argmin(distances[::-1])
    value = _specificities(sums)[closest]
    return value, value


def _evenly_spaced(num_thresholds: int) -> list[float]:
    """Returns the thresholds between the first and the last one."""
    if num_thresholds < 2:
        raise ValueError(
            f"`num_thresholds` must be at least 2. Received: {num_thresholds}"
        )
    return [i / (num_thresholds - 1) for i in range(1, num_thresholds - 1)]


def _sensitivities(sums: Confusion) -> jax.Array:
    positives = sums.true_positives
    return positives / (positives + sums.false_negatives + _MARGIN)


def _specificities(sums: Confusion) -> jax.Array:
    negatives = sums.true_negatives
    return negatives / (negatives + sums.false_positives + _MARGIN)


def _area(sums: Confusion, curve: str, summation_method: str) -> jax.Array:
    """Returns the area under a curve with points from right to left."""
    if curve == "PR" and summation_method == "careful_interpolation":
        return _interpolated_pr_area(sums)
    right = sums.true_positives + _AUC_EPSILON
    recall = right / (right + sums.false_negatives)
    if curve == "ROC":
        wrong = sums.false_positives
        x = wrong / (wrong + sums.true_negatives + _AUC_EPSILON)
        y = recall
    else:
        x = recall
        y = right / (right + sums.false_positives)
    heights = _HEIGHTS[summation_method](y[:-1], y[1:])
    return jnp.sum((x[:-1] - x[1:]) * heights)


def _interpolated_pr_area(sums: Confusion) -> jax.Array:
    """Returns the area with counts, not precisions, linear between points.

    With true positives `a + b p` as a function of the predicted positives `p`, the
    precision is `a / p + b`, so its integral over recall has a logarithm.
    """
    right = sums.true_positives
    predicted = right + sums.false_positives
    step = right[:-1] - right[1:]
    slope = ratio(step, predicted[:-1] - predicted[1:])
    intercept = right[1:] - slope * predicted[1:]
    has_predictions = (predicted[:-1] > 0) & (predicted[1:] > 0)
    growth = jnp.where(has_predictions, ratio(predicted[:-1], predicted[1:]), 1)
    positives = right[1:] + sums.false_negatives[1:]
    areas = slope * (step + intercept * jnp.log(growth))
    return jnp.sum(ratio(areas, positives))


def _check_option(name: str, value: str, options: Sequence[str]) -> None:
    if value not in options:
        raise ValueError(
            f"`{name}` must be one of {list(options)}. Received: {value!r}"
        )
