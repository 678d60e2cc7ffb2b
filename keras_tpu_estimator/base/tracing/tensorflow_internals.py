"""All private parts of TensorFlow that Keras code and datasets need.

The import of TF1 graphs uses those in `tf1/graph/internals.py`.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

# The function that receives the collections which this thread reads, or `None`.
_tell: ContextVar[Callable[[str], None] | None] = ContextVar("tell", default=None)


@contextlib.contextmanager
def telling_of_ops(tell: Callable[[str], None]) -> Iterator[None]:
    """Calls a function with the type of each operation that this thread makes."""
    from tensorflow.python.framework import op_callbacks

    def callback(op_type: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        tell(op_type.decode() if isinstance(op_type, bytes) else op_type)

    op_callbacks.add_op_callback(callback)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(callback)


@contextlib.contextmanager
def telling_of_collections(tell: Callable[[str], None]) -> Iterator[None]:
    """Calls a function with the string name of each collection before it is read."""
    _tell_of_collections()
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


@functools.cache
def _tell_of_collections() -> None:
    """Patches graphs once to call the function of the current context."""
    from tensorflow.python.framework import ops

    get_collection = ops.Graph.get_collection

    @functools.wraps(get_collection)
    def telling(graph: Any, name: Any, scope: Any = None) -> Any:
        tell = _tell.get()
        if tell is not None and isinstance(name, str):
            tell(name)
        return get_collection(graph, name, scope)

    ops.Graph.get_collection = telling


def without_prefetch(dataset: Any) -> Any:
    """Returns a dataset without prefetching at its end."""
    from tensorflow.python.data.ops import prefetch_op

    while isinstance(dataset, prefetch_op._PrefetchDataset):
        dataset = dataset._input_dataset
    return dataset
