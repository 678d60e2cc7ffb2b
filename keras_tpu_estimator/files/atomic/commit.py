"""Files that appear complete or not at all, and the locks of their writers.

A file is written under a temporary name, and renamed when it is on the disk:
'model.ckpt-20.h5.0f0f0f0f.kte-partial' becomes 'model.ckpt-20.h5'. Temporary
names are unique, so that processes can write into one directory. The writer
holds the file's lock, which the operating system releases when the process ends, so
that the lock of a file from a killed process is free. Windows cannot rename open files,
so there the age of a file shows whether its writer is alive.

Windows cannot open directories either, so there a file in the directory is locked
instead, and deleted when the lock is released.
"""

import contextlib
import errno
import glob
import importlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

from keras_tpu_estimator.base.common import system
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths, shared_files, transfers
from keras_tpu_estimator.base.storage.paths import is_url
from keras_tpu_estimator.files.atomic.checksum import new_token

try:
    import fcntl
except ImportError:  # Windows lacks this module.
    # Type checkers do not expect a module to be `None`.
    fcntl = None  # type: ignore[assignment]


_IS_TAKEN = (BlockingIOError, PermissionError)
# The file that is locked instead of a directory on Windows.
LOCK_FILE = "training.kte-lock"
# The file to delete after closing, if any, by descriptor.
_locks: dict[int, str | None] = {}


def _leave_to_parent() -> None:
    """Closes inherited locks in a forked process, such as a data loader."""
    while _locks:
        # The parent process still holds the lock.
        os.close(_locks.popitem()[0])


if fcntl is not None:
    os.register_at_fork(after_in_child=_leave_to_parent)


class TakenError(Exception):
    """Another process, or another descriptor of this process, holds a lock."""


def open_lock(directory: PathLike) -> int:
    """Opens a local directory, and returns a descriptor for `take_lock`."""
    if not system.IS_WINDOWS:
        # This opens the directory itself, so that no file remains.
        return os.open(directory, os.O_RDONLY)
    path = os.path.join(os.fsdecode(directory), LOCK_FILE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    _locks[descriptor] = path
    return descriptor


def take_lock(descriptor: int) -> bool:
    """Takes a lock until `close_lock`; returns whether the file system supports locks.

    On Windows the descriptor must come from `open_lock`, because no other program can
    read a locked file. `TakenError` is raised if another process, or another
    descriptor, holds the lock.
    """
    _locks.setdefault(descriptor, None)
    try:
        _lock(descriptor)
    except _IS_TAKEN as error:
        raise TakenError("Another process or descriptor holds the lock.") from error
    except OSError:  # The file system has no locks.
        return False
    return True


def close_lock(descriptor: int) -> None:
    """Closes a file that was passed to `take_lock`, and releases its lock."""
    # A forked process has already closed it.
    if descriptor in _locks:
        path = _locks.pop(descriptor)
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


@contextlib.contextmanager
def replacing(path: str, is_kept: bool = False) -> Iterator[str]:
    """Yields a temporary name, which becomes `path` if the block succeeds.

    The content is on the disk before the rename, so not even a power cut leaves an
    incomplete file at `path`. The new name is on the disk when the block ends. A file
    for a URL is written locally and then uploaded; if `is_kept`, the local copy is
    cached for reading.
    """
    if is_url(path):
        copy = transfers.Copy(os.path.basename(path))
        yield copy.path
        publish(copy.path, path)
        if is_kept:
            transfers.keep(path, copy)
        return
    with partial_file(path) as partial:
        yield partial
        publish(partial, path)


@contextlib.contextmanager
def writing(prefix: str) -> Iterator[str]:
    """Yields a prefix for the temporary names of several files.

    The block writes these files and calls `publish` for each. If it fails, all
    temporary files are deleted.
    """
    if is_url(prefix):
        # Its temporary folder is deleted with the copy.
        copy = transfers.Copy(os.path.basename(prefix))
        yield copy.path
        return
    with partial_file(prefix) as partial:
        yield partial


def publish(partial: str, path: str) -> None:
    """Moves a complete temporary file to its final path or URL."""
    if not is_url(path):
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
    transfers.put(partial, path)
    if not is_url(path):
        sync_directory(os.path.dirname(path))


def sync_directory(directory: str) -> None:
    """Flushes the file names of a directory to the disk."""
    if system.IS_WINDOWS:
        # Windows opens no directories, and NTFS has its own journal.
        return
    descriptor = os.open(directory or os.curdir, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems do not support or need this.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


_END = ".kte-partial"
# TensorFlow appends its own endings.
_NAME = re.compile(rf"(?P<first>.+\.[0-9a-f]{{8}}{re.escape(_END)})(\..+)?")
# The approximate start time of this process.
_STARTED = time.time()


@contextlib.contextmanager
def partial_file(path: str, token: str | None = None) -> Iterator[str]:
    """Creates an empty, locked file that the block writes and then renames.

    Afterwards nothing remains under the temporary name. If the block fails, nothing
    remains under any name that begins with it, and an error names the file. With a
    `token`, which is part of the name, `FileExistsError` is raised while another block
    has the name.
    """
    name, descriptor = _created(path, token)
    try:
        yield name
    except BaseException as error:
        _name_file(error, path)
        _remove(paths.matching(glob.escape(name) + "*"))
        raise
    else:
        # The file has usually been renamed.
        if os.path.exists(name):
            _remove([name])
    finally:
        if descriptor is not None:
            close_lock(descriptor)


def _name_file(error: BaseException, path: str) -> None:
    """Adds a path to an error that has none, such as that of a full disk."""
    if isinstance(error, OSError) and error.errno and error.filename is None:
        error.filename = path


def remove_abandoned(directory: str) -> None:
    """Removes the temporary files that no process is writing."""
    groups: dict[str, list[str]] = {}
    for name in sorted(paths.names_in(directory)):
        match = _NAME.fullmatch(name)
        if match is not None:
            path = os.path.join(directory, name)
            first = os.path.join(directory, match["first"])
            groups.setdefault(first, []).append(path)
    for first, files in groups.items():
        with _abandoned(first) as is_abandoned:
            if is_abandoned:
                _remove(files)


def _created(path: str, token: str | None = None) -> tuple[str, int | None]:
    """Creates and locks a new file, and returns its name and descriptor.

    On Windows it is neither open nor locked, because it could not be renamed.
    """
    while True:
        name = f"{path}.{token or new_token()}{_END}"
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if system.IS_WINDOWS:
            os.close(descriptor)
            return name, None
        try:
            take_lock(descriptor)
            # Another process may have removed it before it was locked.
            if os.path.exists(name):
                return name, descriptor
        except TakenError:
            pass
        close_lock(descriptor)


@contextlib.contextmanager
def _abandoned(path: str) -> Iterator[bool]:
    """Yields whether no process writes a file, and prevents new writers."""
    if system.IS_WINDOWS:
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
    except OSError:  # The file belongs to another user.
        yield False
        return
    try:
        has_locks = take_lock(descriptor)
        yield has_locks or _is_old(os.fstat(descriptor))
    except TakenError:
        yield False
    finally:
        close_lock(descriptor)


def _is_old(status: os.stat_result) -> bool:
    """Returns whether a file was last written before this process started."""
    return status.st_mtime < _STARTED


def _remove(files: Iterable[str]) -> None:
    for path in files:
        with (
            contextlib.suppress(FileNotFoundError),
            shared_files.left_if_in_use(path),
        ):
            paths.remove(path)
