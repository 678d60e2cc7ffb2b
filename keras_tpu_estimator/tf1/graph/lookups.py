"""Lookups without lookup tables and sparse tensors, which XLA lacks.

Devices compare keys with the constants of a table of numbers. For sparse ids, they look
up a matrix of ids, and weigh each of them. The host makes the matrix, and pads it to a
power of two columns, so that few compiled programs serve all batches.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator.tf1.graph.partitions import rows_of

MISSING = -1
# Tensors that the host pads.
_COLLECTION = "kte_borders"
_batch_rows: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    "rows", default=None
)
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


def found_in(pairs: _Pairs, queries: Any, default: Any, name: str) -> Any:
    """Returns the values of a tensor of keys, or the default value."""
    import tensorflow as tf

    keys, values = pairs
    with tf.name_scope(name):
        sorted_keys = tf.constant(keys, queries.dtype)
        flat = tf.reshape(queries, [-1])
        positions = tf.minimum(tf.searchsorted(sorted_keys, flat), len(keys) - 1)
        matches = tf.gather(tf.constant(values, default.dtype), positions)
        is_known = tf.equal(tf.gather(sorted_keys, positions), flat)
        result = tf.where(is_known, matches, tf.fill(tf.shape(flat), default))
        return tf.reshape(result, tf.shape(queries))


def combined_lookup(
    value_of: Callable[[Any], Any], original: Callable[..., Any]
) -> Callable[..., Any]:
    """Replaces the lookup in `tf.nn.embedding_lookup_sparse`.

    Ids in constant rows may come from the devices, others come from the host.
    `value_of` returns the value of a constant tensor, or `None`.
    """

    def look_up(
        params: Any, segment_ids: Any, sp_weights: Any, ids: Any, *settings: Any
    ) -> Any:
        is_fixed = ids.shape.is_fully_defined()
        # The number of rows follows from the values of the segment ids.
        segments = value_of(segment_ids) if is_fixed else None
        if len(params) != 1 or (is_fixed and segments is None):
            return original(params, segment_ids, sp_weights, ids, *settings)
        combiner, ignores_weights, max_norm, _, strategy, _ = settings
        weights = None if ignores_weights else sp_weights.values
        if segments is not None:
            embeddings = _embedded(params[0], ids, max_norm, strategy)
            return _by_segment(embeddings, weights, segments, combiner)
        rows, static = _rows(segment_ids)
        columns, shares = in_columns(segment_ids, ids, weights, [rows], [static])
        return weighed(params[0], columns, shares, combiner, max_norm, strategy)

    return look_up


def _embedded(params: Any, ids: Any, max_norm: float | None, strategy: str) -> Any:
    import tensorflow as tf

    look_up = tf.compat.v1.nn.embedding_lookup
    return look_up(params, ids, strategy, max_norm=max_norm)


def _by_segment(
    embeddings: Any, weights: Any, segments: np.ndarray, combiner: str
) -> Any:
    """Combines the found rows of each segment, as TensorFlow's sparse operations do."""
    import tensorflow as tf

    rows = int(segments.max(initial=-1)) + 1
    shares = tf.ones(segments.shape, embeddings.dtype)
    if weights is not None:
        shares = tf.cast(weights, embeddings.dtype)
        width = [-1] + [1] * (embeddings.shape.rank - 1)
        embeddings *= tf.reshape(shares, width)

    def summed(tensor: Any) -> Any:
        return tf.math.unsorted_segment_sum(tensor, segments, rows)

    total = summed(embeddings)
    if combiner == "sum":
        return total
    size = summed(shares if combiner == "mean" else shares**2)
    size = tf.reshape(size, [-1] + [1] * (embeddings.shape.rank - 1))
    return tf.math.divide_no_nan(total, size if combiner == "mean" else tf.sqrt(size))


def in_columns(
    segment_ids: Any,
    ids: Any,
    weights: Any,
    outer: Sequence[Any],
    static: Sequence[int | None],
) -> tuple[Any, Any]:
    """Returns the ids and the weights of each row, with the columns as their last axis.

    A missing id is -1, and its weight 0. Without weights, the second result is `None`.

    Args:
        segment_ids: The row of each id, sorted.
        outer: The sizes of the axes that are counted as rows.
        static: The same sizes, or `None` for those that are unknown.
    """
    import tensorflow as tf

    sizes = [tf.cast(size, tf.int64) for size in outer]
    rows = functools.reduce(lambda x, y: x * y, sizes)

    # The checks of `from_value_rowids` would be three quarters of the operations.
    ragged = tf.RaggedTensor.from_value_rowids(
        ids, _in_order(tf.cast(segment_ids, tf.int64)), rows, validate=False
    )

    def matrix(values: Any, missing: int) -> Any:
        cells = ragged.with_values(values).to_tensor(tf.constant(missing, values.dtype))
        if len(sizes) > 1:
            cells = tf.reshape(
                cells, tf.stack([*sizes, tf.shape(cells, out_type=tf.int64)[1]])
            )
        cells.set_shape([*static, None])
        return border(cells, missing)

    return matrix(ids, MISSING), None if weights is None else matrix(weights, 0)


def _in_order(segment_ids: Any) -> Any:
    """Returns the rows of ids, which must not descend."""
    import tensorflow as tf

    is_in_order = tf.reduce_all(segment_ids[:-1] <= segment_ids[1:])
    message = "The ids of a sparse tensor must be in the order of their rows."
    check = tf.raw_ops.Assert(condition=is_in_order, data=[message])
    with tf.control_dependencies([check]):
        return tf.identity(segment_ids)


def weighed(
    params: Any,
    ids: Any,
    weights: Any,
    combiner: str,
    max_norm: float | None,
    partition_strategy: str,
) -> Any:
    """Looks up ids, -1 for none, and combines the rows of those along the last axis."""
    import tensorflow as tf

    axis = ids.shape.rank - 1
    shares = tf.cast(ids >= 0, params.dtype)
    if weights is not None:
        shares *= tf.cast(weights, params.dtype)
    # Rows that are looked up are updated, even by zero. A missing cell therefore
    # has an id of its row; in a row without ids it has 0.
    fill_ids = tf.maximum(tf.reduce_max(ids, axis=-1, keepdims=True), 0)
    ids = rows_of(params, tf.where(ids < 0, fill_ids, ids), partition_strategy)
    rows = tf.gather(params, ids)
    if max_norm is not None:
        own_axes = [*range(axis + 1, rows.shape.rank)]
        rows = tf.clip_by_norm(rows, max_norm, axes=own_axes)
    for _ in range(rows.shape.rank - axis - 1):
        shares = tf.expand_dims(shares, -1)
    total = tf.reduce_sum(rows * shares, axis)
    if combiner == "sum":
        return total
    size = tf.reduce_sum(shares if combiner == "mean" else shares**2, axis)
    return tf.math.divide_no_nan(total, size if combiner == "mean" else tf.sqrt(size))


def safe_lookup(
    params: Any,
    ids: Any,
    weights: Any,
    combiner: str,
    default_id: int | None,
    max_norm: float | None,
    partition_strategy: str,
) -> Any:
    """Looks up sparse ids as `tf.nn.safe_embedding_lookup_sparse` does."""
    import tensorflow as tf

    first, *inner = ids.shape.as_list()[:-1]
    static = [rows_of_batch() if first is None else first, *inner]
    shape = ids.dense_shape
    outer = [shape[n] if size is None else size for n, size in enumerate(static)]
    values = None if weights is None else weights.values
    flat = ids
    if len(outer) > 1:
        rows = functools.reduce(
            lambda x, y: x * y, [tf.cast(n, tf.int64) for n in outer]
        )
        flat = tf.sparse.reshape(ids, tf.stack([rows, shape[len(outer)]]))
    is_valid = flat.values >= 0
    if values is not None and combiner != "sum":
        is_valid &= values > 0
    positions = tf.where(is_valid)[:, 0]
    segments = tf.gather(flat.indices[:, 0], positions)
    valid_ids = tf.gather(flat.values, positions)
    if values is not None:
        values = tf.gather(values, positions)
    columns, shares = in_columns(segments, valid_ids, values, outer, static)
    if default_id is not None:
        is_empty = tf.reduce_all(columns < 0, axis=-1, keepdims=True)
        is_first = tf.equal(tf.range(tf.shape(columns)[-1]), 0)
        is_default = is_empty & is_first
        columns = tf.where(is_default, tf.cast(default_id, columns.dtype), columns)
        if shares is not None:
            shares = tf.where(is_default, tf.ones_like(shares), shares)
    return weighed(params, columns, shares, combiner, max_norm, partition_strategy)


def _rows(segment_ids: Any) -> tuple[Any, int | None]:
    """Returns the number of rows of a sparse tensor, and the static number."""
    import tensorflow as tf

    rows = rows_of_batch()
    indices = segment_ids.op.inputs[0].op
    if rows is not None and indices.type != "SparseReshape":
        return rows, rows
    last = tf.reduce_max(tf.concat([[-1], tf.cast(segment_ids, tf.int32)], 0)) + 1
    return last, None


@contextlib.contextmanager
def batches_of(rows: int | None) -> Iterator[None]:
    """Sets the number of rows of batches for graphs built in a `with` block."""
    token = _batch_rows.set(rows)
    try:
        yield
    finally:
        _batch_rows.reset(token)


def rows_of_batch() -> int | None:
    """Returns the number of rows of a batch, if it is known."""
    return _batch_rows.get()


def border(tensor: Any, missing: int) -> Any:
    """Marks a tensor that leaves the host, to be padded with columns of `missing`."""
    import tensorflow as tf

    with tf.name_scope("kte_border"):
        marked = tf.identity(tensor)
    tf.compat.v1.add_to_collection(_COLLECTION, (marked.name, missing))
    return marked


def borders_of(graph: Any) -> dict[str, int]:
    """Returns the values of more columns by the names of marked tensors."""
    return dict(graph.get_collection(_COLLECTION))


def filled(array: np.ndarray, missing: int, columns: int) -> np.ndarray:
    """Returns an array with `missing` in new columns, up to a number of columns."""
    widths = [(0, 0)] * (array.ndim - 1) + [(0, columns - array.shape[-1])]
    return np.pad(array, widths, constant_values=missing)


def columns_for(columns: int) -> int:
    """Returns the smallest power of two that is at least a number of columns."""
    return 1 << max(columns - 1, 0).bit_length()
