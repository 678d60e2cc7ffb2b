"""Lists of `tf.train.Feature` that accept the same numbers as in TensorFlow 1.

Protocol buffers now reject booleans as integers, and arrays of one number as numbers.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf


class FloatList:
    """Makes a `tf.train.FloatList`.

    Args:
        value: Numbers, or arrays of one number. Defaults to none.
    """

    FromString = staticmethod(tf.train.FloatList.FromString)

    def __new__(cls, value: Iterable[Any] = ()) -> tf.train.FloatList:
        return tf.train.FloatList(value=_numbers(value, float))


class Int64List:
    """Makes a `tf.train.Int64List`.

    Args:
        value: Integers, booleans, or arrays of one. Defaults to none.
    """

    FromString = staticmethod(tf.train.Int64List.FromString)

    def __new__(cls, value: Iterable[Any] = ()) -> tf.train.Int64List:
        return tf.train.Int64List(value=_numbers(value, int))


def _numbers(value: Iterable[Any], kind: type) -> list[Any]:
    """Converts values that protocol buffers reject."""
    refused = (bool, np.bool_, np.ndarray)
    return [
        kind(each.item() if isinstance(each, np.ndarray) else each)
        if isinstance(each, refused)
        else each
        for each in value
    ]
