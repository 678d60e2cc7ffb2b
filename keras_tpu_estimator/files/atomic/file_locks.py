"""Locks that the operating system keeps, and frees when a process ends.

Windows opens no directories. There a file in a directory is locked in its
place, and is deleted when the lock is freed.
"""

import contextlib
import importlib
import os
from typing import Any

try:
    import fcntl
except ImportError:  # Not on Windows.
    # To a checker a module is never `None`.
    fcntl = None  # type: ignore[assignment]

from keras_tpu_estimator.ground.base import operating_system
from keras_tpu_estimator.ground.base.types import PathLike

_IS_TAKEN = (BlockingIOError, PermissionError)
# On Windows, what is locked in place of a directory.
LOCK_FILE = "training.kte-lock"
# By descriptor, the file to delete after it is closed, if any.
_held: dict[int, str | None] = {}


def _leave_to_parent() -> None:
    """Lets a forked process not keep locks, such as a data loader's worker."""
    while _held:
        # This frees no lock while the parent process holds it.
        os.close(_held.popitem()[0])


if fcntl is not None:
    os.register_at_fork(after_in_child=_leave_to_parent)


class TakenError(Exception):
    """Somebody else holds a lock."""


def opened(directory: PathLike) -> int:
    """Opens a directory for `take`.

    Args:
        directory: An existing directory of this machine.

    Returns:
        A descriptor to `close`.
    """
    if not operating_system.IS_WINDOWS:
        # The directory itself, so that no file stays behind.
        return os.open(directory, os.O_RDONLY)
    path = os.path.join(os.fsdecode(directory), LOCK_FILE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    _held[descriptor] = path
    return descriptor


def take(descriptor: int) -> bool:
    """Takes the lock of a file or directory, until `close`.

    Args:
        descriptor: The open file or directory, which `close` closes. On
            Windows it must be from `opened`, because no other program can read
            what is locked.

    Returns:
        Whether there are locks here at all: some file systems know none.

    Raises:
        TakenError: Another process has it, or this one by another descriptor.

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
        raise TakenError("It is held.") from error
    except OSError:  # A file system without locks.
        return False
    return True


def close(descriptor: int) -> None:
    """Closes a file, and frees its lock.

    Args:
        descriptor: One that `take` was called with.
    """
    # A forked process has closed it.
    if descriptor in _held:
        path = _held.pop(descriptor)
        os.close(descriptor)
        if path is not None:
            # Another process that has opened the file keeps it.
            with contextlib.suppress(OSError):
                os.remove(path)


def _lock(descriptor: int) -> None:
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    # The types of this module exist on Windows only.
    msvcrt: Any = importlib.import_module("msvcrt")
    msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
