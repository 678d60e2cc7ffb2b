"""Crossed feature columns without sparse tensors.

They contain all combinations of all cells, hashed as in TensorFlow.
"""

import math
from collections.abc import Sequence
from typing import Any

from keras_tpu_estimator.tf1.feature_columns import (
    MISSING,
    Function,
    all_cells,
    has_all_cells,
    shape_of,
)

# TensorFlow's default hash key.
_HASH_KEY = 0xDECAFCAFFE
# The constants of FarmHash's `FingerprintCat64`.
_MULTIPLIER = 0xC6A4A7935BD1E995
_SHIFT = 47


def crossed(original: Function) -> Function:
    """Adapts `tf.sparse.cross_hashed` to integers in dense rows and columns."""
    import tensorflow as tf

    def cross(
        inputs: Sequence[Any],
        num_buckets: int = 0,
        hash_key: int | None = None,
        name: str | None = None,
    ) -> Any:
        if not num_buckets or not all(map(_is_table, inputs)):
            return original(inputs, num_buckets, hash_key, name)
        sparse = [x for x in inputs if isinstance(x, tf.SparseTensor)]
        dense = [x for x in inputs if not isinstance(x, tf.SparseTensor)]
        # The hashes depend on the order of the original.
        tables = [tf.reshape(x.values, shape_of(x)) for x in sparse] + dense
        apart = [
            _along(tf.cast(table, tf.int64), number, len(tables))
            for number, table in enumerate(tables)
        ]
        hashes = tf.constant(hash_key or _HASH_KEY, tf.uint64)
        for numbers in apart:
            hashes = _fingerprint(hashes, tf.bitcast(numbers, tf.uint64))
        ids = tf.cast(hashes % tf.constant(num_buckets, tf.uint64), tf.int64)
        for numbers in apart[: len(sparse)]:
            missing = tf.constant(MISSING, tf.int64)
            ids = tf.where(tf.equal(numbers, missing), missing, ids)
        rows, *combinations = ids.shape.as_list()
        return all_cells(tf.reshape(ids, [-1]), [rows, math.prod(combinations)])

    return cross


def _is_table(tensor: Any) -> bool:
    """Returns whether a tensor is a dense matrix of integers."""
    import tensorflow as tf

    if not tensor.dtype.is_integer:
        return False
    if isinstance(tensor, tf.SparseTensor):
        return has_all_cells(tensor) and len(shape_of(tensor)) == 2
    shape = tensor.shape
    return shape.is_fully_defined() and len(shape) == 2


def _along(table: Any, number: int, count: int) -> Any:
    """Reshapes a matrix so that its columns have a separate axis."""
    import tensorflow as tf

    shape = [1] * (count + 1)
    shape[0], shape[number + 1] = table.shape.as_list()
    return tf.reshape(table, shape)


def _fingerprint(first: Any, second: Any) -> Any:
    """Returns the hash of two 64-bit integers."""
    import tensorflow as tf

    multiplier = tf.constant(_MULTIPLIER, tf.uint64)
    mixed = _mixed(second * multiplier) * multiplier
    both = tf.bitwise.bitwise_xor(first, multiplier)
    both = tf.bitwise.bitwise_xor(both, mixed) * multiplier
    return _mixed(_mixed(both) * multiplier)


def _mixed(number: Any) -> Any:
    import tensorflow as tf

    shift = tf.constant(_SHIFT, tf.uint64)
    high = tf.bitwise.right_shift(number, shift)
    return tf.bitwise.bitwise_xor(number, high)
