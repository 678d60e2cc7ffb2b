"""Renaming and deleting files that another program may have open.

Linux and macOS allow it. Windows refuses it with a `PermissionError` while any
program has the file open, such as an evaluation that reads the `checkpoint`
file, or a virus scanner. Most programs close a file within a moment.
"""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import BinaryIO
from typing import TypeVar

from keras_tpu_estimator.ground.base import operating_system

_T = TypeVar("_T")
# Pauses between attempts, in seconds: 5 s in all.
_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 1.62)

_logger = logging.getLogger("keras_tpu_estimator")


def opened(path: str) -> BinaryIO:
    """Opens a file for reading, also while it is being replaced.

    Args:
        path: A file on this machine.
    """
    # A directory is never opened.
    if operating_system.IS_WINDOWS and os.path.isdir(path):
        return open(path, "rb")
    return _patiently(lambda: open(path, "rb"))


def replace(source: str, target: str) -> None:
    """Renames a file, or a folder if the target is missing.

    Args:
        source: Its name now.
        target: Its new name. A file there is replaced.

    Raises:
        PermissionError: On Windows, a program has one of them open.
    """
    _patiently(lambda: os.replace(source, target))


def remove(path: str) -> None:
    """Deletes a file.

    Raises:
        PermissionError: On Windows, a program has it open.
    """
    _patiently(lambda: os.remove(path))


def remove_tree(path: str) -> None:
    """Deletes a folder with all its files.

    Raises:
        PermissionError: On Windows, a program has one of them open.
    """
    _patiently(lambda: shutil.rmtree(path))


@contextlib.contextmanager
def left_if_in_use(path: str) -> Iterator[None]:
    """Logs instead of failing if Windows does not delete what is in use.

    Args:
        path: What the block deletes, for the log.

    Raises:
        PermissionError: Of the block, except on Windows.
    """
    try:
        yield
    except PermissionError as error:
        if not operating_system.IS_WINDOWS:
            raise
        _logger.warning(
            "%s cannot be deleted now, because another program has it open "
            "(%s). A later save or the next training deletes it.",
            path,
            error,
        )


def _patiently(act: Callable[[], _T]) -> _T:
    """Tries again what Windows refuses while a program has a file open."""
    if operating_system.IS_WINDOWS:
        for pause in _PAUSES:
            try:
                return act()
            except PermissionError:
                time.sleep(pause)
    return act()
