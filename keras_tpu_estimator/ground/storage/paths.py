"""What `os` does with paths, for URLs as well.

Only a file that is not there counts as such. Whatever else a store answers is
an error: taken for an empty directory, it would let training start afresh.
"""

import glob
import os
from typing import BinaryIO

from keras_tpu_estimator.ground.base.types import PathLike
from keras_tpu_estimator.ground.storage import shared_files
from keras_tpu_estimator.ground.storage.urls import is_url, located, with_slashes


def is_file(path: str) -> bool:
    """Whether there is a file.

    Args:
        path: A path or URL.

    Example:

    >>> is_file("/nowhere"), is_file("memory://nowhere")
    (False, False)
    """
    if not is_url(path):
        return os.path.isfile(path)
    return _kind(path) == "file"


def is_directory(path: str) -> bool:
    """Whether there is a directory.

    Args:
        path: A path, or a URL, where it is there if something is in it.

    Example:

    >>> is_directory("/"), is_directory("memory://nowhere")
    (True, False)
    """
    if not is_url(path):
        return os.path.isdir(path)
    return _kind(path) == "directory"


def names_in(directory: str) -> list[str]:
    """The names in a directory.

    Args:
        directory: A path or URL.

    Returns:
        Names of files and directories. None of a URL where nothing is.

    Raises:
        FileNotFoundError: There is no such directory on this machine.

    Example:

    >>> import tempfile
    >>> names_in(tempfile.mkdtemp())
    []
    """
    if not is_url(directory):
        return os.listdir(directory)
    filesystem, path = located(directory)
    try:
        found = filesystem.ls(path, detail=False)
    except FileNotFoundError:
        return []
    names = (os.path.basename(each.rstrip("/")) for each in found)
    # Some stores list an object that stands for the directory itself.
    itself = path.rstrip("/")
    return [
        name
        for name, each in zip(names, found, strict=True)
        if each.rstrip("/") != itself
    ]


def matching(pattern: str) -> list[str]:
    """The files that match a pattern.

    Args:
        pattern: As for `glob.glob`, a path or URL.

    Returns:
        Their paths or URLs, sorted.

    Example:

    >>> matching("/nowhere/*")
    []
    """
    if not is_url(pattern):
        return sorted(glob.glob(pattern))
    filesystem, path = located(pattern)
    return sorted(map(filesystem.unstrip_protocol, filesystem.glob(path)))


def make_directory(path: str) -> None:
    """Makes a directory, where there are such.

    Args:
        path: A path, or a URL, for which nothing is done: what is written
            there makes its directory.

    Example:

    >>> make_directory("memory://bucket/run")
    """
    if not is_url(path):
        os.makedirs(path, exist_ok=True)


def remove(path: str, last: str | None = None) -> None:
    """Removes a file, a link, or a folder with everything in it.

    Everything that this package removes is removed here. Links are never
    followed: what they point to stays.

    Args:
        path: A path or URL.
        last: The name of a file in a folder of this machine that is removed
            only if everything else is. Defaults to none.

    Raises:
        FileNotFoundError: The path does not exist. Some stores do not report
            it.
        OSError: A folder gets files while it is removed.

    Example:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> remove(folder)
    >>> is_directory(folder)
    False
    """
    if not is_url(path):
        shared_files.remove(path, last)
        return
    filesystem, located_at = located(path)
    if _kind(path) == "directory":
        filesystem.rm(located_at, recursive=True)
    else:
        filesystem.rm_file(located_at)


def opened(path: PathLike) -> BinaryIO:
    """Opens a file for reading.

    Args:
        path: A path or URL.

    Raises:
        FileNotFoundError: There is no such file.

    Example:

    >>> opened("memory://nowhere")
    Traceback (most recent call last):
    ...
    FileNotFoundError: ...
    """
    if not is_url(path):
        return shared_files.opened(os.fsdecode(path))
    filesystem, path = located(path)
    return filesystem.open(path, "rb")


def version(path: str) -> tuple[object, ...]:
    """What is another one as soon as a file has another content.

    Args:
        path: A path or URL.

    Returns:
        Something to compare.

    Raises:
        FileNotFoundError: There is no such file.

    Example:

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     version(file.name) == version(file.name)
    True
    """
    if is_url(path):
        filesystem, located_at = located(path)
        return path, filesystem.ukey(located_at)
    status = os.stat(path)
    return (
        os.path.realpath(path),
        status.st_size,
        *(status.st_dev, status.st_ino, status.st_mtime_ns),
    )


def canonical(path: PathLike) -> str:
    """One name for all names of a directory.

    Args:
        path: A path or URL.

    Example:

    >>> canonical("gs://bucket/run/"), canonical("/tmp/../tmp")
    ('gs://bucket/run', '/tmp')
    """
    path = os.fsdecode(path)
    if is_url(path):
        return with_slashes(path).rstrip("/")
    return os.path.realpath(path)


def _kind(url: str) -> str | None:
    filesystem, path = located(url)
    try:
        # `exists`, `isfile` and `isdir` take any failure for an absence.
        return filesystem.info(path)["type"]
    except FileNotFoundError:
        return None
