"""Every private part of TensorFlow that Keras code is checked with.

What lifts graphs has its own, in `tf1/internals.py`.
"""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def telling_of_ops(tell: Callable[[str], None]) -> Iterator[None]:
    """Calls a function before each op that this thread runs or adds.

    Args:
        tell: Called with the type of the op, such as "RandomUniform".
    """
    from tensorflow.python.framework import op_callbacks

    def callback(op_type: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        tell(op_type.decode() if isinstance(op_type, bytes) else op_type)

    op_callbacks.add_op_callback(callback)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(callback)
