"""Locks that the operating system keeps, and frees when a process ends."""

import os

try:
    import fcntl
except ImportError:  # Not on Windows.
    # To a checker a module is never `None`.
    fcntl = None  # type: ignore[assignment]

_IS_TAKEN = (BlockingIOError, PermissionError)
_held: set[int] = set()


def _leave_to_parent() -> None:
    """Lets a forked process not keep locks, such as a data loader's worker."""
    while _held:
        os.close(_held.pop())  # Which frees none while the parent holds it.


if fcntl is not None:
    os.register_at_fork(after_in_child=_leave_to_parent)


class TakenError(Exception):
    """Somebody else holds a lock."""


def take(descriptor: int) -> bool:
    """Takes the lock of a file or directory, until `close`.

    Args:
        descriptor: The file, open; it belongs to this room from now on.

    Returns:
        Whether there are locks here at all: some file systems know none.

    Raises:
        TakenError: Another process has it, or this one by another descriptor.

    Example:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> first, second = (os.open(folder, os.O_RDONLY) for _ in range(2))
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
    _held.add(descriptor)
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        _held.remove(descriptor)
        os.close(descriptor)
