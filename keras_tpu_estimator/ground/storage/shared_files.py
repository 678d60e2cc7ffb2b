"""Renaming and deleting files that another program may have open.

Linux and macOS allow it. Windows refuses it with a `PermissionError` while any
program has the file open, such as an evaluation that reads the `checkpoint`
file, or a virus scanner. Most programs close a file within a moment.
"""

import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from keras_tpu_estimator.ground.base import operating_system

_T = TypeVar("_T")
# IO_REPARSE_TAG_MOUNT_POINT of Windows.
_JUNCTION = 0xA0000003
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


def remove(path: str, last: str | None = None) -> None:
    """Deletes a file, a link, or a folder with everything in it.

    Links are deleted and never followed, so nothing outside is deleted.

    Args:
        path: The file, the link or the folder.
        last: The name of a file in the folder that is deleted only if
            everything else is. Defaults to none.

    Raises:
        FileNotFoundError: The path does not exist.
        OSError: Another thread writes into the folder.
        PermissionError: On Windows, a program has a file open.
    """
    if not _is_folder(path):
        _patiently(lambda: os.remove(path))
        return
    for name in sorted({*os.listdir(path)} - {last}):
        remove(os.path.join(path, name))
    if last is not None and os.listdir(path) == [last]:
        _patiently(lambda: os.remove(os.path.join(path, last)))
    _patiently(lambda: os.rmdir(path))


def _is_folder(path: str) -> bool:
    """Whether a path is a folder itself, not a link to one."""
    status = os.lstat(path)
    # Windows has a second kind of links, which it shows as folders.
    is_junction = getattr(status, "st_reparse_tag", 0) == _JUNCTION
    return stat.S_ISDIR(status.st_mode) and not is_junction


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
