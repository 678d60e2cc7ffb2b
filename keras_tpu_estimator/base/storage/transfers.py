"""Copies of files between this machine and stores.

HDF5 and TensorFlow read only local files. A few local copies are cached, so that a
recently written or read file is not downloaded again.
"""

import contextlib
import os
import pathlib
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from keras_tpu_estimator.base.storage import paths, shared_files
from keras_tpu_estimator.base.storage.paths import is_url, located

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# Servers look for this file of an export, so it is uploaded last.
_LAST_OF_TREE = "saved_model.pb"


_MOST_KEPT = 2
_KEPT: dict[str, tuple[object, "Copy"]] = {}
_LOCK = threading.Lock()


def put(local: str, path: str) -> None:
    """Moves a complete local file to its path or URL, and replaces an existing file.

    The file must be on the same file system as a local path.
    """
    if not is_url(path):
        shared_files.replace(local, path)
        return
    filesystem, path = located(path)
    _with_parents(filesystem, path, lambda: filesystem.put_file(local, path))


def put_bytes(content: bytes, url: str) -> None:
    """Writes an object to a store, and replaces an existing one."""
    filesystem, path = located(url)
    _with_parents(filesystem, path, lambda: filesystem.pipe_file(path, content))


def put_tree(local: str, url: str) -> None:
    """Copies a directory to a store, `saved_model.pb` last; removes it on failure."""
    files = [
        # URLs have slashes, also on Windows.
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
    """Copies an object of a store, which must exist, to a local file."""
    filesystem, path = located(url)
    filesystem.get_file(path, local)


def _with_parents(
    filesystem: "AbstractFileSystem", path: str, write: Callable[[], object]
) -> None:
    """Writes, and makes parent directories only if the store requires them."""
    try:
        write()
    except FileNotFoundError:
        filesystem.makedirs(os.path.dirname(path), exist_ok=True)
        write()


class Copy:
    """A file in a temporary folder, which is removed with this object.

    The copy keeps its `original` alive, if there is one.
    """

    def __init__(self, name: str, original: object = None):
        self._original = original
        folder = tempfile.mkdtemp(prefix="kte-copy-")
        self.path = os.path.join(folder, name)
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)


class Original:
    """A file that is already on this machine."""

    def __init__(self, path: str):
        self.path = path


def local_copy(path: str, suffixes: Sequence[str] = ("",)) -> Copy | Original:
    """Returns a local file with the content of a path or URL; a URL must exist.

    The caller must hold the returned object while it uses its `path`.

    Args:
        suffixes: The endings of the files that `path` stands for.
    """
    if not is_url(path):
        return Original(path)
    version = tuple(paths.version(path + suffix) for suffix in suffixes)
    with _LOCK:
        cached_version, copy = _KEPT.get(path, (None, None))
    if copy is None or cached_version != version:
        copy = Copy(os.path.basename(path))
        for suffix in suffixes:
            fetch(path + suffix, copy.path + suffix)
        _keep(path, version, copy)
    return copy


def has_wildcards(path: str) -> bool:
    """Returns whether TensorFlow reads a path as a pattern that does not match it.

    >>> has_wildcards("/tmp/a[b]"), has_wildcards("/tmp/a*b")
    (True, False)
    """
    # Windows has other patterns.
    return os.name != "nt" and ("[" in path or "\\" in path)


def without_wildcards(
    files: Copy | Original, suffixes: Sequence[str]
) -> Copy | Original:
    """Returns files, or links to them if TensorFlow reads their path as a pattern."""
    path = os.path.abspath(files.path)
    if not has_wildcards(path):
        return files
    links = Copy("links", files)
    for suffix in suffixes:
        os.symlink(path + suffix, links.path + suffix)
    return links


def keep(url: str, copy: Copy) -> None:
    """Caches the local copy of a file that was just written."""
    _keep(url, (paths.version(url),), copy)


def _keep(url: str, version: object, copy: Copy) -> None:
    with _LOCK:
        _KEPT.pop(url, None)
        _KEPT[url] = (version, copy)
        while len(_KEPT) > _MOST_KEPT:
            del _KEPT[next(iter(_KEPT))]
