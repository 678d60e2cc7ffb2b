"""Transformations of `tf.contrib.data`, and lists of `tf.train.Feature`.

Protocol buffers now reject booleans as integers, and arrays of one number as numbers.
The lists accept them as in TensorFlow 1.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf


def batch_and_drop_remainder(batch_size: Any) -> Callable[[Any], Any]:
    """Makes batches of equal size.

    Args:
        batch_size: The size.

    Example:

    >>> data = tf.data.Dataset.range(5).apply(batch_and_drop_remainder(2))
    >>> tf.data.get_output_shapes(data).as_list()
    [2]
    """
    return lambda data: data.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(
    batch_size: Any, padded_shapes: Any, padding_values: Any = None
) -> Callable[[Any], Any]:
    """Makes padded batches of equal size.

    Args:
        batch_size: The size.
        padded_shapes: The shapes to which elements are padded.
        padding_values: The padding values. Defaults to zeros and empty strings.

    Example:

    >>> data = tf.data.Dataset.from_tensors([1.0]).repeat(3)
    >>> data = data.apply(padded_batch_and_drop_remainder(2, [4]))
    >>> tf.data.get_output_shapes(data).as_list()
    [2, 4]
    """
    return lambda data: data.padded_batch(
        batch_size, padded_shapes, padding_values, drop_remainder=True
    )


def assert_element_shape(expected_shapes: Any) -> Callable[[Any], Any]:
    """Sets the shapes of elements, and checks them.

    Args:
        expected_shapes: A pytree of shapes like an element.

    Example:

    >>> data = tf.data.Dataset.range(5).apply(assert_element_shape([]))
    >>> tf.data.get_output_shapes(data).as_list()
    []
    """

    def ensure(*element: Any) -> Any:
        structure = element if len(element) > 1 else element[0]
        flat = tf.nest.flatten(structure)
        shapes = _flat_shapes(expected_shapes, structure)
        # A shape of unknown rank needs no check.
        same = [
            tensor
            if tf.TensorShape(shape).ndims is None
            else tf.ensure_shape(tensor, shape)
            for tensor, shape in zip(flat, shapes, strict=True)
        ]
        return tf.nest.pack_sequence_as(structure, same)

    return lambda data: data.map(ensure)


def _flat_shapes(shapes: Any, element: Any) -> list[Any]:
    """Returns shapes in the order of the tensors of an element."""
    if isinstance(element, dict):
        return [
            shape
            for key in sorted(element)
            for shape in _flat_shapes(shapes[key], element[key])
        ]
    if isinstance(element, tuple):
        return [
            shape
            for expected, inner in zip(shapes, element, strict=True)
            for shape in _flat_shapes(expected, inner)
        ]
    return [shapes]


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
        kind(number.item() if isinstance(number, np.ndarray) else number)
        if isinstance(number, refused)
        else number
        for number in value
    ]
