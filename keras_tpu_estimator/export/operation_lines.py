"""The user's lines that make Keras's layers and operations."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import keras

from keras_tpu_estimator.ground.base.source_line import SourceLine
from keras_tpu_estimator.ground.base.user_files import is_of_user


@contextlib.contextmanager
def noted_operations() -> Iterator[dict[str, SourceLine]]:
    """Notes the line of each operation that this thread makes in the block.

    Yields:
        Lines by the names of operations.

    Example:

    >>> with noted_operations() as lines:
    ...     y = 1 + keras.layers.Dense(1)(keras.Input([2]))
    >>> list(lines)  # A line of a file, in other programs.
    []
    """
    construct, thread = keras.Operation.__init__, threading.get_ident()
    lines: dict[str, SourceLine] = {}

    # Keras reads this signature, names included.
    def noting(self: keras.Operation, name: str | None = None) -> None:
        construct(self, name)
        line = _calling_line() if threading.get_ident() == thread else None
        if line is not None:
            lines[self.name] = line

    keras.Operation.__init__ = noting
    try:
        yield lines
    finally:
        keras.Operation.__init__ = construct


def _calling_line() -> SourceLine | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_of_user(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith("<"):
        return None
    return SourceLine(frame.f_code.co_filename, frame.f_lineno)
