"""Files that are being written, under names of their own.

'model.ckpt-20.h5.0f0f0f0f.kte-partial' becomes 'model.ckpt-20.h5'. No two of
them have the same name, so processes that write into one directory do not hurt
each other. Who writes one holds its lock; the lock of what a killed process has
left is free. On Windows, where no open file is renamed, the age of a file says
whether its writer is alive.
"""

import contextlib
import glob
import os
import re
import time
from collections.abc import Iterable
from collections.abc import Iterator

from keras_tpu_estimator.files.atomic import file_locks
from keras_tpu_estimator.files.atomic.stamp import new_token
from keras_tpu_estimator.ground.base import operating_system
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage import shared_files

_END = ".kte-partial"
# TensorFlow adds ends of its own.
_NAME = re.compile(rf"(?P<first>.+\.[0-9a-f]{{8}}{re.escape(_END)})(\..+)?")
# About the start of this process.
_STARTED = time.time()


@contextlib.contextmanager
def partial_file(path: str) -> Iterator[str]:
    """Makes an empty file to be written in a `with` block, and then renamed.

    Args:
        path: What it shall become, in an existing directory of this machine.

    Yields:
        Its name. At the end nothing stays under it; if the block fails,
        nothing under names that begin with it.

    Example:

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> with partial_file(os.path.join(directory, "note")) as partial:
    ...     len(os.listdir(directory))
    1
    >>> os.listdir(directory)
    []
    """
    name, descriptor = _made(path)
    try:
        yield name
    except BaseException:
        _remove(paths.matching(glob.escape(name) + "*"))
        raise
    else:
        # Nearly always it was renamed.
        if os.path.exists(name):
            _remove([name])
    finally:
        if descriptor is not None:
            file_locks.close(descriptor)


def remove_abandoned(directory: str) -> None:
    """Removes files that nobody writes any more.

    Args:
        directory: An existing directory of this machine. Others may be writing
            into it.

    Example:

    >>> import pathlib, tempfile
    >>> directory = pathlib.Path(tempfile.mkdtemp())
    >>> (directory / "model.ckpt-5.h5.0f0f0f0f.kte-partial").touch()
    >>> (directory / "notes.kte-partial").touch()
    >>> remove_abandoned(str(directory))
    >>> os.listdir(directory)
    ['notes.kte-partial']
    """
    found: dict[str, list[str]] = {}
    for name in sorted(paths.names_in(directory)):
        match = _NAME.fullmatch(name)
        if match is not None:
            path = os.path.join(directory, name)
            first = os.path.join(directory, match["first"])
            found.setdefault(first, []).append(path)
    for first, files in found.items():
        with _abandoned(first) as is_abandoned:
            if is_abandoned:
                _remove(files)


def _made(path: str) -> tuple[str, int | None]:
    """A new file that this process has locked: its name, and the file.

    On Windows it is neither open nor locked, because it could not be renamed.
    """
    while True:
        name = f"{path}.{new_token()}{_END}"
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if operating_system.IS_WINDOWS:
            os.close(descriptor)
            return name, None
        try:
            file_locks.take(descriptor)
            # Unless somebody took it for abandoned before it was locked.
            if os.path.exists(name):
                return name, descriptor
        except file_locks.TakenError:
            pass
        file_locks.close(descriptor)


@contextlib.contextmanager
def _abandoned(path: str) -> Iterator[bool]:
    """Whether nobody writes a file; in the `with` block nobody begins to."""
    if operating_system.IS_WINDOWS:
        try:
            is_abandoned = _is_old(os.stat(path))
        except FileNotFoundError:
            is_abandoned = True
        yield is_abandoned
        return
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield True
        return
    except OSError:  # Another user's.
        yield False
        return
    try:
        has_locks = file_locks.take(descriptor)
        yield has_locks or _is_old(os.fstat(descriptor))
    except file_locks.TakenError:
        yield False
    finally:
        file_locks.close(descriptor)


def _is_old(status: os.stat_result) -> bool:
    """Whether a file was last written before this process started."""
    return status.st_mtime < _STARTED


def _remove(files: Iterable[str]) -> None:
    for path in files:
        with (
            contextlib.suppress(FileNotFoundError),
            shared_files.left_if_in_use(path),
        ):
            paths.remove(path)
