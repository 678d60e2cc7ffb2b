"""Files that appear whole or not at all."""

import contextlib
import errno
import os
from collections.abc import Iterator

from keras_tpu_estimator.storage import copies
from keras_tpu_estimator.storage import transfers
from keras_tpu_estimator.storage.urls import is_url

_PARTIAL = ".kte-partial"


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
        transfers.put(copy.path, path)
        if is_kept:
            copies.keep(path, copy)
        return
    partial = path + _PARTIAL
    try:
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
        _sync_directory(os.path.dirname(path))
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)
        raise


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory or os.curdir, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems do not know this, or need not.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def remove_leftovers(directory: str) -> None:
    """Deletes what killed processes left half-written in `directory`.

    Args:
        directory: An existing directory that no other process writes to; or a
            URL, where nothing is ever left.

    Example:

    >>> import pathlib, tempfile
    >>> directory = pathlib.Path(tempfile.mkdtemp())
    >>> (directory / "model.ckpt-5.h5.kte-partial").touch()
    >>> remove_leftovers(str(directory))
    >>> list(directory.iterdir())
    []
    """
    if is_url(directory):
        return
    with os.scandir(directory) as entries:
        leftovers = [e.path for e in entries if _PARTIAL in e.name]
    for path in leftovers:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
