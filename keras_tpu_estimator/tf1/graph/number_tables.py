"""Lookup tables of numbers as comparisons, because XLA has no tables."""

from typing import Any

import numpy as np

# Keys and values.
_Pairs = tuple[np.ndarray, np.ndarray]


def pairs_of(
    keys: np.ndarray | None, values: np.ndarray | None, default: np.ndarray | None
) -> _Pairs | None:
    """Returns a table's pairs by key, if the keys are distinct constant integers."""
    if keys is None or values is None or default is None or not keys.size:
        return None
    is_usable = (
        keys.dtype.kind in "iu"
        and values.dtype.kind in "biuf"
        # TensorFlow refuses a table with two values for one key.
        and np.unique(keys).size == keys.size
    )
    if not is_usable:
        return None
    order = np.argsort(keys)
    return keys[order], values[order]


def found_in(pairs: _Pairs, wanted: Any, default: Any, name: str) -> Any:
    """Returns the values of a tensor of keys, or the default value."""
    import tensorflow as tf

    keys, values = pairs
    with tf.name_scope(name):
        known = tf.constant(keys, wanted.dtype)
        flat = tf.reshape(wanted, [-1])
        places = tf.minimum(tf.searchsorted(known, flat), len(keys) - 1)
        found = tf.gather(tf.constant(values, default.dtype), places)
        is_known = tf.equal(tf.gather(known, places), flat)
        result = tf.where(is_known, found, tf.fill(tf.shape(flat), default))
        return tf.reshape(result, tf.shape(wanted))
