"""Confusion counts at many thresholds, from one pass over the predictions."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.spec.metrics.confusion import Confusion
from keras_tpu_estimator.spec.metrics.examples import Examples
from keras_tpu_estimator.spec.metrics.ranges import nan_unless


def confusion_at(examples: Examples, thresholds: Sequence[float]) -> Confusion:
    """Counts one batch, where probabilities above a threshold mean yes.

    Args:
        examples: Labels to be read as booleans, predictions in `[0, 1]`.
        thresholds: Numbers in any order.

    Returns:
        Vectors with one element for each threshold.

    Raises:
        ValueError: A prediction is known and outside of `[0, 1]`.
    """
    examples = examples.flat()
    predictions = examples.predictions.astype(jnp.float32)
    invalid = nan_unless(
        (predictions >= 0) & (predictions <= 1),
        "predictions must be in [0, 1]. Pass probabilities, such as "
        "ops.sigmoid(logits).",
    )
    # Each prediction is compared with a few thresholds only, by bisection; the
    # sums over intervals are then put together for each threshold.
    points = np.asarray(thresholds, np.float32)
    edges = np.sort(points)
    interval = jnp.searchsorted(edges, predictions)
    intervals = np.arange(edges.size + 1)
    is_above = intervals > np.searchsorted(edges, points)[:, None]

    def weight_of(condition: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights = jnp.where(condition, examples.weights, 0)
        sums = jnp.bincount(interval, weights, length=intervals.size)
        # No running sum: its rounding would differ between two thresholds
        # with no prediction in between, and which one is best would be chance.
        above = jnp.sum(jnp.where(is_above, sums, 0), axis=1)
        below = jnp.sum(jnp.where(is_above, 0, sums), axis=1)
        return above + invalid, below + invalid

    is_positive = examples.labels.astype(bool)
    true_positives, false_negatives = weight_of(is_positive)
    false_positives, true_negatives = weight_of(~is_positive)
    return Confusion(
        true_positives, false_negatives, true_negatives, false_positives
    )
