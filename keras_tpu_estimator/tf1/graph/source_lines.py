"""The lines of the user's code that made operations or raised errors."""

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any

from keras_tpu_estimator.base.common.user_code import SourceLine

_PACKAGES = (
    "tensorflow",
    "tensorboard",
    "keras_tpu_estimator",
    "tf_keras",
    "tf_slim",
)


def line_of(op: Any) -> str:
    """Returns the user's line that made an operation, as text.

    For an operation of a gradient, the text also names the forward operation.
    """
    line, forward = _in_words(op), getattr(op, "_original_op", None)
    if forward is None:
        return line
    return f"{line} as the gradient of {forward.name}, made at " + _in_words(forward)


def _in_words(op: Any) -> str:
    line = source_line_of(op)
    return "an unknown line" if line is None else f"{line.file}:{line.number}"


def source_line_of(op: Any) -> SourceLine | None:
    """Returns the user's line that made an operation, if known."""
    return _last_of_user(op.traceback)


def raising_line(error: BaseException) -> SourceLine | None:
    """Returns the user's line that raised an error, if known."""
    return _last_of_user(traceback.extract_tb(error.__traceback__))


def _last_of_user(frames: Sequence[Any]) -> SourceLine | None:
    between = (
        *(_folder_of(package) for package in _PACKAGES if package in sys.modules),
        contextlib.__file__,
        threading.__file__,
    )
    for frame in reversed(frames):
        if not frame.filename.startswith(between):
            return SourceLine(frame.filename, frame.lineno)
    return None


def _folder_of(package: str) -> str:
    return os.path.join(os.path.dirname(sys.modules[package].__file__ or ""), "")
