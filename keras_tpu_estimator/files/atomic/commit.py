"""Files that appear whole or not at all."""

import contextlib
import errno
import os
from collections.abc import Iterator

from keras_tpu_estimator.files.atomic.partial_files import partial_file
from keras_tpu_estimator.ground.base import operating_system
from keras_tpu_estimator.ground.storage import copies
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
