"""Bucketing: padded columns for tensors that the host passes to the devices.

The cells of sparse tensors become columns of dense ones. The host pads these to
a power of two columns, so that few compiled programs serve all batches.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import numpy as np

_COLLECTION = "kte_borders"
_rows: contextvars.ContextVar[int | None] = contextvars.ContextVar("rows", default=None)


@contextlib.contextmanager
def batches_of(rows: int | None) -> Iterator[None]:
    """Sets the number of rows of batches for graphs built in a `with` block."""
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)


def rows_of_batch() -> int | None:
    """Returns the number of rows of a batch, if it is known."""
    return _rows.get()


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
