"""All private parts of TensorFlow that Keras code and datasets need.

The import of TF1 graphs uses those in `tf1/graph/internals.py`.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

# The function that receives the collections which this thread reads, or `None`.
_report: ContextVar[Callable[[str], None] | None] = ContextVar("report", default=None)


@contextlib.contextmanager
def ops_reported(report: Callable[[str], None]) -> Iterator[None]:
    """Calls a function with the type of each operation that this thread makes."""
    from tensorflow.python.framework import op_callbacks

    def callback(op_type: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        report(op_type.decode() if isinstance(op_type, bytes) else op_type)

    op_callbacks.add_op_callback(callback)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(callback)


@contextlib.contextmanager
def collections_reported(report: Callable[[str], None]) -> Iterator[None]:
    """Calls a function with the string name of each collection before it is read."""
    _patch_collections()
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


@functools.cache
def _patch_collections() -> None:
    """Patches graphs once to call the function of the current context."""
    from tensorflow.python.framework import ops

    get_collection = ops.Graph.get_collection

    @functools.wraps(get_collection)
    def reporting(graph: Any, name: Any, scope: Any = None) -> Any:
        report = _report.get()
        if report is not None and isinstance(name, str):
            report(name)
        return get_collection(graph, name, scope)

    ops.Graph.get_collection = reporting


def without_prefetch(dataset: Any) -> Any:
    """Returns a dataset without prefetching at its end."""
    from tensorflow.python.data.ops import prefetch_op

    while isinstance(dataset, prefetch_op._PrefetchDataset):
        dataset = dataset._input_dataset
    return dataset
