"""Lists of `tf.train.Feature`, which take the numbers that they took.

Protocol buffers have since come to refuse booleans as integers, and arrays of
one number as a number.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf


class FloatList:
    """What makes a `tf.train.FloatList`.

    Args:
        value: Numbers, or arrays of one. Defaults to none.
    """

    FromString = staticmethod(tf.train.FloatList.FromString)

    def __new__(cls, value: Iterable[Any] = ()) -> tf.train.FloatList:
        return tf.train.FloatList(value=_numbers(value, float))


class Int64List:
    """What makes a `tf.train.Int64List`.

    Args:
        value: Integers, booleans, or arrays of one. Defaults to none.
    """

    FromString = staticmethod(tf.train.Int64List.FromString)

    def __new__(cls, value: Iterable[Any] = ()) -> tf.train.Int64List:
        return tf.train.Int64List(value=_numbers(value, int))


def _numbers(value: Iterable[Any], kind: type) -> list[Any]:
    """What they refuse as they took it; the rest is theirs to check."""
    refused = (bool, np.bool_, np.ndarray)
    return [
        kind(each.item() if isinstance(each, np.ndarray) else each)
        if isinstance(each, refused)
        else each
        for each in value
    ]
