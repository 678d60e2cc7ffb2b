"""Bringing files of this machine to a store, and back."""

import contextlib
import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from keras_tpu_estimator.ground.storage import paths, shared_files
from keras_tpu_estimator.ground.storage.urls import is_url, located

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# Who looks for an export, looks for this file of it.
_LAST_OF_TREE = "saved_model.pb"


def put(local: str, path: str) -> None:
    """Brings a complete file to where it belongs.

    Args:
        local: The file, on this machine.
        path: A path on the same file system, or a URL. A file there is
            replaced.

    Example:

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     put(file.name, "memory://bucket/file")
    >>> paths.is_file("memory://bucket/file")
    True
    """
    if not is_url(path):
        shared_files.replace(local, path)
        return
    filesystem, path = located(path)
    _with_parents(filesystem, path, lambda: filesystem.put_file(local, path))


def put_bytes(content: bytes, url: str) -> None:
    """Writes an object of a store.

    Args:
        content: What it is to hold.
        url: Its URL. What is there is replaced.

    Example:

    >>> put_bytes(b"content", "memory://bucket/file")
    >>> paths.opened("memory://bucket/file").read()
    b'content'
    """
    filesystem, path = located(url)
    _with_parents(filesystem, path, lambda: filesystem.pipe_file(path, content))


def put_tree(local: str, url: str) -> None:
    """Copies a directory to a store, the file of a SavedModel as the last.

    Args:
        local: The directory, on this machine.
        url: The URL of the copy. If copying fails, nothing stays there.
    """
    files = [
        # With slashes on Windows as well.
        pathlib.Path(folder, name).relative_to(local).as_posix()
        for folder, _, names in os.walk(local)
        for name in names
    ]
    files.sort(key=lambda file: file == _LAST_OF_TREE)
    try:
        for file in files:
            put(os.path.join(local, file), f"{url}/{file}")
    except BaseException:
        with contextlib.suppress(Exception):
            paths.remove(url)
        raise


def fetch(url: str, local: str) -> None:
    """Copies an object of a store to this machine.

    Args:
        url: The URL.
        local: The file to write.

    Raises:
        FileNotFoundError: There is no such object.

    Example:

    >>> fetch("memory://nowhere", "/tmp/file")
    Traceback (most recent call last):
    ...
    FileNotFoundError: ...
    """
    filesystem, path = located(url)
    filesystem.get_file(path, local)


def _with_parents(
    filesystem: "AbstractFileSystem", path: str, write: Callable[[], object]
) -> None:
    """Writes, and makes directories only where they turn out to be needed."""
    try:
        write()
    except FileNotFoundError:
        filesystem.makedirs(os.path.dirname(path), exist_ok=True)
        write()
