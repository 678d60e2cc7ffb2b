"""Feature columns without sparse tensors, which XLA does not support.

A column of ids has all cells of its rows. A missing cell has the id -1, which also
marks a missing id in dense features.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator.tf1.graph.lookups import safe_lookup, weighed

MISSING = -1
Function = Callable[..., Any]


def to_cells(original: Function) -> Function:
    """Adapts the function that makes tensors sparse, so that they keep all cells."""
    import tensorflow as tf

    def with_all_cells(values: Any, ignore_value: Any = None) -> Any:
        is_dense = tf.is_tensor(values) and not isinstance(values, tf.SparseTensor)
        is_known = is_dense and values.shape.is_fully_defined()
        # The host has sparse tensors, and it reads strings.
        if not is_known or values.dtype == tf.string:
            return original(values, ignore_value)
        if values.dtype.is_integer and ignore_value is not None:
            missing = tf.constant(MISSING, values.dtype)
            is_missing = tf.equal(values, ignore_value)
            values = tf.where(is_missing, missing, values)
        return all_cells(tf.reshape(values, [-1]), values.shape.as_list())

    return with_all_cells


def with_default(original: Function) -> Function:
    """Adapts the method that converts numbers to ids to keep missing ids."""
    import tensorflow as tf

    def transformed(column: Any, numbers: Any) -> Any:
        ids = original(column, numbers)
        if not has_all_cells(ids):
            return ids
        is_missing = tf.equal(numbers.values, MISSING)
        missing = tf.constant(MISSING, ids.values.dtype)
        values = tf.where(is_missing, missing, ids.values)
        return tf.SparseTensor(ids.indices, values, ids.dense_shape)

    return transformed


def in_vocabulary(original: Function) -> Function:
    """Adapts the method that looks up ids in a vocabulary list, without a lookup table.

    TensorFlow's own method hashes numbers beyond the list as strings.
    """
    import tensorflow as tf

    def transformed(column: Any, numbers: Any, state_manager: Any = None) -> Any:
        is_known = numbers.dtype.is_integer and column.dtype.is_integer
        if not is_known or column.num_oov_buckets or not has_all_cells(numbers):
            return original(column, numbers, state_manager)
        listed = tf.constant(column.vocabulary_list, tf.int64)
        values = tf.cast(numbers.values, tf.int64)
        is_same = tf.equal(values[:, None], listed)
        positions = tf.where(is_same, tf.range(tf.size(listed, tf.int64)), 0)
        vocabulary_ids = tf.where(
            tf.reduce_any(is_same, axis=1),
            tf.reduce_sum(positions, axis=1),
            tf.constant(column.default_value, tf.int64),
        )
        missing = tf.constant(MISSING, tf.int64)
        ids = tf.where(tf.equal(values, missing), missing, vocabulary_ids)
        return tf.SparseTensor(numbers.indices, ids, numbers.dense_shape)

    return transformed


def reshaped(original: Function) -> Function:
    """Adapts `tf.sparse.reshape` to tensors with all cells."""

    import tensorflow as tf

    def reshape(tensor: Any, shape: Any, name: str | None = None) -> Any:
        if has_all_cells(tensor):
            new = tf.reshape(tensor.values, shape).shape
            if new.is_fully_defined():
                return all_cells(tensor.values, new.as_list())
        return original(tensor, shape, name)

    return reshape


def looked_up(original: Function) -> Function:
    """Adapts `tf.nn.safe_embedding_lookup_sparse` to tensors with all cells."""
    import tensorflow as tf

    def look_up(
        embedding_weights: Any,
        sparse_ids: Any,
        sparse_weights: Any = None,
        combiner: str = "mean",
        default_id: int | None = None,
        name: str | None = None,
        max_norm: float | None = None,
        **settings: Any,
    ) -> Any:
        if isinstance(embedding_weights, list) and len(embedding_weights) == 1:
            (embedding_weights,) = embedding_weights
        is_whole = not isinstance(embedding_weights, list | tuple)
        is_known = is_whole and default_id is None
        if is_whole and not sparse_ids.values.shape.is_fully_defined():
            with tf.name_scope(name or "embedding_lookup"):
                return safe_lookup(
                    embedding_weights,
                    sparse_ids,
                    sparse_weights,
                    combiner,
                    default_id,
                    max_norm,
                    settings.get("partition_strategy", "div"),
                )
        if not (is_known and has_all_cells(sparse_ids)):
            return original(
                embedding_weights,
                sparse_ids,
                sparse_weights,
                combiner,
                default_id,
                name,
                max_norm=max_norm,
                **settings,
            )
        with tf.name_scope(name or "embedding_lookup"):
            *outer, cells = shape_of(sparse_ids).as_list()
            ids = tf.reshape(sparse_ids.values, [-1, cells])
            weights = None
            if sparse_weights is not None:
                weights = tf.reshape(sparse_weights.values, [-1, cells])
                if combiner != "sum":
                    weights = tf.maximum(weights, 0)
            strategy = settings.get("partition_strategy", "div")
            embeddings = weighed(
                embedding_weights, ids, weights, combiner, max_norm, strategy
            )
            return tf.reshape(embeddings, [*outer, *embeddings.shape.as_list()[1:]])

    return look_up


def all_cells(values: Any, shape: Sequence[int]) -> Any:
    """Returns a sparse tensor that contains all cells."""
    import tensorflow as tf

    cells = np.argwhere(np.ones(shape, bool))
    return tf.SparseTensor(
        tf.constant(cells, tf.int64), values, tf.constant(shape, tf.int64)
    )


def has_all_cells(tensor: Any) -> bool:
    """Returns whether a sparse tensor contains all cells."""
    shape = shape_of(tensor)
    if not shape.is_fully_defined():
        return False
    is_whole: bool = tensor.values.shape.as_list() == [shape.num_elements()]
    return is_whole


def shape_of(tensor: Any) -> Any:
    """Returns the shape of a sparse tensor, as far as TensorFlow can infer it."""
    import tensorflow as tf

    return tf.zeros(tensor.dense_shape, tf.bool).shape


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
    combined = tf.bitwise.bitwise_xor(first, multiplier)
    combined = tf.bitwise.bitwise_xor(combined, mixed) * multiplier
    return _mixed(_mixed(combined) * multiplier)


def _mixed(number: Any) -> Any:
    import tensorflow as tf

    shift = tf.constant(_SHIFT, tf.uint64)
    high = tf.bitwise.right_shift(number, shift)
    return tf.bitwise.bitwise_xor(number, high)
