"""Histograms: counts of values in buckets of equal width.

Values on devices are counted there, so that only the counts are copied to the
host. Values on the host are counted in float64.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Buckets(NamedTuple):
    """Counts in buckets of equal width; the last one includes its upper edge.

    Attributes:
        low: The smallest value.
        high: The largest value.
        counts: Integers of shape `[buckets]`.
    """

    low: Any
    high: Any
    counts: Any

    def table(self) -> np.ndarray:
        """Returns rows of left edge, right edge and count, for TensorBoard."""
        counts = np.asarray(self.counts, np.float64)
        edges = np.linspace(
            np.float64(self.low), np.float64(self.high), len(counts) + 1
        )
        return np.stack([edges[:-1], edges[1:], counts], axis=1)


def count(values: Any, buckets: int) -> Buckets:
    """Counts values; those that are not finite are ignored.

    Equal values all count in the last bucket, whose edges are then equal.

    Args:
        values: Floats of shape `[values]`.

    Example:

    >>> from keras_tpu_estimator.files.summary.buckets import count
    >>> count(np.array([0.0, 1.0, 1.5, 4.0]), buckets=2).table()
    array([[0., 2., 3.],
           [2., 4., 1.]])
    """
    if isinstance(values, jax.Array):
        return _count_on_devices(values, buckets)
    values = values[np.isfinite(values)]
    if not values.size:
        return Buckets(0.0, 0.0, np.zeros(buckets, np.int64))
    low, high = values.min(), values.max()
    places = _places(values, low, high, buckets, np)
    return Buckets(low, high, np.bincount(places, minlength=buckets))


def _count_on_devices(values: jax.Array, buckets: int) -> Buckets:
    finite = jnp.isfinite(values)
    low = jnp.min(values, initial=jnp.inf, where=finite)
    high = jnp.max(values, initial=-jnp.inf, where=finite)
    is_empty = low > high
    low, high = jnp.where(is_empty, 0, low), jnp.where(is_empty, 0, high)
    places = _places(jnp.where(finite, values, low), low, high, buckets, jnp)
    # Values past the end are dropped.
    places = jnp.where(finite, places, buckets)
    return Buckets(low, high, jnp.bincount(places, length=buckets))


def _places(values: Any, low: Any, high: Any, buckets: int, xp: Any) -> Any:
    """Returns the number of each value's bucket."""
    width = high - low
    is_one = width == 0
    share = (values - low) / xp.where(is_one, 1, width)
    place = xp.where(is_one, buckets, xp.floor(share * buckets))
    return xp.clip(place, 0, buckets - 1).astype(xp.int32)
