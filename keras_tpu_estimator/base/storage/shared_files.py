"""Local files that other programs or threads use at the same time.

Linux and macOS allow renaming and deleting an open file. Windows raises a
`PermissionError` while any program has the file open, such as an evaluation that reads
the `checkpoint` file, or a virus scanner. Most programs close a file soon.
"""

import contextlib
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from keras_tpu_estimator.base.common import system

_T = TypeVar("_T")
# Windows's IO_REPARSE_TAG_MOUNT_POINT.
_JUNCTION = 0xA0000003
# Pauses between attempts, in seconds, which add up to 5 s.
_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 1.62)

_logger = logging.getLogger("keras_tpu_estimator")


# A thread holds this lock while it changes the position of a file.
_MOVED = threading.Lock()


def opened(path: str) -> BinaryIO:
    """Opens a file for reading, even while it is being replaced.

    A named pipe is an empty file, because training must not wait for its writer.
    """
    # Opening a directory always fails.
    if system.IS_WINDOWS and os.path.isdir(path):
        return open(path, "rb")
    return _patiently(lambda: open(path, "rb", opener=without_waiting))


def without_waiting(path: str, flags: int) -> int:
    """Opens a file as `os.open` does, but does not wait for a named pipe's writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def replace(source: str, target: str) -> None:
    """Renames a file, or a folder if the target is missing; replaces a target file."""
    _patiently(lambda: os.replace(source, target))


def remove(path: str, last: str | None = None) -> None:
    """Deletes a file, a link, or a folder with everything in it; follows no links.

    It raises an `OSError` if another thread writes into the folder or, on Windows, if a
    program has a file open.

    Args:
        last: The name of a file in the folder that is deleted only after everything
            else.
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
    """Returns whether a path is a folder itself, not a link to one."""
    status = os.lstat(path)
    # Windows has a second kind of link, which appears as a folder.
    is_junction = getattr(status, "st_reparse_tag", 0) == _JUNCTION
    return stat.S_ISDIR(status.st_mode) and not is_junction


@contextlib.contextmanager
def left_if_in_use(path: str) -> Iterator[None]:
    """Logs instead of failing if Windows does not delete an open file."""
    try:
        yield
    except PermissionError as error:
        if not system.IS_WINDOWS:
            raise
        _logger.warning(
            "%s cannot be deleted now, because another program has it open "
            "(%s). A later save or the next training deletes it.",
            path,
            error,
        )


def _patiently(act: Callable[[], _T]) -> _T:
    """Retries an action that Windows rejects while a program has a file open."""
    if system.IS_WINDOWS:
        for pause in _PAUSES:
            try:
                return act()
            except PermissionError:
                time.sleep(pause)
    return act()


def read_at(descriptor: int, memory: memoryview, offset: int) -> int:
    """Reads into memory at an offset, without changing the file's position.

    Returns the number of bytes read, which may be less than requested; 0 means the end
    of the file. Several threads may read at once.
    """
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [memory], offset)
    # Windows and macOS 10 lack `preadv`.
    with _At(descriptor, offset):
        content = os.read(descriptor, len(memory))
    memory[: len(content)] = content
    return len(content)


def write_at(descriptor: int, memory: memoryview, offset: int) -> int:
    """Writes memory at an offset, without changing the file's position.

    Returns the number of bytes written, which may be less than all.
    """
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, memory, offset)
    with _At(descriptor, offset):
        return os.write(descriptor, memory)


class _At:
    """Moves a file to another position in a `with` block."""

    def __init__(self, descriptor: int, offset: int) -> None:
        self._descriptor = descriptor
        self._offset = offset

    def __enter__(self) -> None:
        _MOVED.acquire()
        self._before = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        os.lseek(self._descriptor, self._offset, os.SEEK_SET)

    def __exit__(self, *exception: object) -> None:
        # Buffered files rely on their position.
        os.lseek(self._descriptor, self._before, os.SEEK_SET)
        _MOVED.release()
