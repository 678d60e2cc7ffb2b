"""Files that appear whole or not at all."""

import contextlib
import errno
import glob
import os
import re
import time
from collections.abc import Iterable
from collections.abc import Iterator

from keras_tpu_estimator.files.atomic import file_locks
from keras_tpu_estimator.files.atomic.checksum import new_token
from keras_tpu_estimator.ground.base import operating_system
from keras_tpu_estimator.ground.storage import copies
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage import shared_files
from keras_tpu_estimator.ground.storage import transfers
from keras_tpu_estimator.ground.storage.urls import is_url


@contextlib.contextmanager
def replacing(path: str, is_kept: bool = False) -> Iterator[str]:
    """Gives a temporary name, which becomes `path` when the block succeeds.

    The content is on the disk before the name changes, so that not even a
    power cut leaves half a file under `path`, and the name is when this ends.
    What belongs to a URL is written on this machine, and uploaded then.

    Args:
        path: The file to make or replace, or its URL.
        is_kept: Whether a file for a URL will soon be read here again.
            Defaults to `False`.

    Yields:
        A name in the same directory, or in a temporary one, to be written and
        closed in the block.

    Example:

    >>> import pathlib, tempfile
    >>> target = pathlib.Path(tempfile.mkdtemp(), "note")
    >>> with replacing(str(target)) as partial:
    ...     size = pathlib.Path(partial).write_text("whole")
    ...     target.exists()
    False
    >>> target.read_text()
    'whole'
    """
    if is_url(path):
        copy = copies.Copy(os.path.basename(path))
        yield copy.path
        publish(copy.path, path)
        if is_kept:
            copies.keep(path, copy)
        return
    with partial_file(path) as partial:
        yield partial
        publish(partial, path)


@contextlib.contextmanager
def writing(prefix: str) -> Iterator[str]:
    """Gives what the temporary names of several files begin with.

    Args:
        prefix: What the names that they will have begin with, or their URLs.

    Yields:
        The beginning of names to write to and to `publish` in the block. If
        that fails, nothing stays under them.

    Example:

    >>> import pathlib, tempfile
    >>> directory = pathlib.Path(tempfile.mkdtemp())
    >>> with writing(str(directory / "note")) as partial:
    ...     size = pathlib.Path(partial + ".txt").write_text("whole")
    ...     publish(partial + ".txt", str(directory / "note.txt"))
    >>> os.listdir(directory)
    ['note.txt']
    """
    if is_url(prefix):
        # It goes with its folder.
        copy = copies.Copy(os.path.basename(prefix))
        yield copy.path
        return
    with partial_file(prefix) as partial:
        yield partial


def publish(partial: str, path: str) -> None:
    """Gives a file that is complete the name that it is to have.

    Args:
        partial: Its temporary name.
        path: The name or URL. What is there is replaced.
    """
    if not is_url(path):
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
    transfers.put(partial, path)
    if not is_url(path):
        sync_directory(os.path.dirname(path))


def sync_directory(directory: str) -> None:
    """Has the names of files in a directory be on the disk."""
    if operating_system.IS_WINDOWS:
        # Windows opens no directories, and NTFS has its own journal.
        return
    descriptor = os.open(directory or os.curdir, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems do not know this, or need not.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


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
