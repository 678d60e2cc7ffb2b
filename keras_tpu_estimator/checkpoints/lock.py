"""One training at a time in a directory."""

import contextlib
import os
from collections.abc import Iterator

from keras_tpu_estimator.base.types import PathLike
from keras_tpu_estimator.storage.urls import is_url

try:
    import fcntl
except ImportError:  # Not on Windows; there it is up to the user.
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


@contextlib.contextmanager
def only_training(directory: PathLike) -> Iterator[None]:
    """Refuses a second training in a directory for the time of a `with` block.

    The operating system keeps the lock, and frees it when the process ends, in
    whatever way; processes that it forked do not hold it. Where a file system
    knows no locks there is none, and there is none at a URL.

    Args:
        directory: The directory, or its URL. It is made, and stays if it does
            not stay empty.

    Raises:
        RuntimeError: Another training has the directory, in this process or in
            another one of this machine.

    Example:

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> with only_training(directory):
    ...     with only_training(directory):
    ...         pass
    Traceback (most recent call last):
    ...
    RuntimeError: Another training writes into ...
    """
    if is_url(directory):
        yield
        return
    is_new = not os.path.isdir(directory)
    os.makedirs(directory, exist_ok=True)
    try:
        with _locked(directory):
            yield
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                os.rmdir(directory)


@contextlib.contextmanager
def _locked(directory: PathLike) -> Iterator[None]:
    if fcntl is None:
        yield
        return
    # The directory itself, so that no file stays behind.
    descriptor = os.open(directory, os.O_RDONLY)
    _held.add(descriptor)
    try:
        _lock(descriptor, directory)
        yield
    finally:
        if descriptor in _held:
            _held.remove(descriptor)
            os.close(descriptor)


def _lock(descriptor: int, directory: PathLike) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except _IS_TAKEN as error:
        raise RuntimeError(
            f"Another training writes into {os.fspath(directory)!r}. Expected "
            "one at a time: their checkpoints would replace each other. Wait "
            "for its end, or choose another `model_dir`."
        ) from error
    except OSError:  # A file system without locks.
        return
