"""Lookup tables of numbers as comparisons, because XLA has no tables."""

from typing import Any

import numpy as np

# Keys and values.
_Pairs = tuple[np.ndarray, np.ndarray]


def pairs_of(
    keys: np.ndarray | None, values: np.ndarray | None, default: np.ndarray | None
) -> _Pairs | None:
    """Returns the sorted keys of a table and their values, if devices can compare them.

    The keys must be different constant integers.

    Args:
        keys: The keys, or `None` if they vary.
        values: Their values, or `None` if they vary.
        default: The value of other keys, or `None` if it varies.
    """
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
    """Returns the values of keys, or the default value.

    Args:
        pairs: The sorted keys of the table, and their values.
        wanted: A tensor of keys.
        default: The value of other keys, a tensor.
        name: The name of the operations.
    """
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
