"""Locks of the operating system, which are released when a process ends.

Windows cannot open directories, so there a file in the directory is locked
instead, and deleted when the lock is released.
"""

import contextlib
import importlib
import os
from typing import Any

try:
    import fcntl
except ImportError:  # Not on Windows.
    # Type checkers do not expect a module to be `None`.
    fcntl = None  # type: ignore[assignment]

from keras_tpu_estimator.base.common import machine
from keras_tpu_estimator.base.common.types import PathLike

_IS_TAKEN = (BlockingIOError, PermissionError)
# The file that is locked instead of a directory on Windows.
LOCK_FILE = "training.kte-lock"
# The file to delete after closing, if any, by descriptor.
_held: dict[int, str | None] = {}


def _leave_to_parent() -> None:
    """Closes inherited locks in a forked process, such as a data loader."""
    while _held:
        # The parent process still holds the lock.
        os.close(_held.popitem()[0])


if fcntl is not None:
    os.register_at_fork(after_in_child=_leave_to_parent)


class TakenError(Exception):
    """Another process, or another descriptor of this process, holds a lock."""


def opened(directory: PathLike) -> int:
    """Opens a local directory, and returns a descriptor for `take`."""
    if not machine.IS_WINDOWS:
        # This opens the directory itself, so that no file remains.
        return os.open(directory, os.O_RDONLY)
    path = os.path.join(os.fsdecode(directory), LOCK_FILE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    _held[descriptor] = path
    return descriptor


def take(descriptor: int) -> bool:
    """Takes the lock of a file or directory until `close`.

    Args:
        descriptor: The open file or directory. On Windows it must come from
            `opened`, because no other program can read a locked file.

    Returns:
        Whether the file system supports locks.

    Raises:
        TakenError: Another process, or another descriptor, holds the lock.

    Example:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> first, second = (opened(folder) for _ in range(2))
    >>> take(first)
    True
    >>> take(second)
    Traceback (most recent call last):
    ...
    keras_tpu_estimator.files.atomic.file_locks.TakenError: ...
    >>> close(first)
    >>> take(second)
    True
    >>> close(second)
    """
    _held.setdefault(descriptor, None)
    try:
        _lock(descriptor)
    except _IS_TAKEN as error:
        raise TakenError("Another process or descriptor holds the lock.") from error
    except OSError:  # A file system without locks.
        return False
    return True


def close(descriptor: int) -> None:
    """Closes a file that was passed to `take`, and releases its lock."""
    # A forked process has already closed it.
    if descriptor in _held:
        path = _held.pop(descriptor)
        os.close(descriptor)
        if path is not None:
            # Windows refuses this while another process has the file open.
            with contextlib.suppress(OSError):
                os.remove(path)


def _lock(descriptor: int) -> None:
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    # The types of this module exist on Windows only.
    msvcrt: Any = importlib.import_module("msvcrt")
    msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
