"""Copies of remote files on this machine's disk.

HDF5 and TensorFlow read files of the operating system. A few copies are kept,
so that what was just written or read is not fetched again.
"""

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Sequence

from keras_tpu_estimator.ground.storage import paths, transfers
from keras_tpu_estimator.ground.storage.urls import is_url

_MOST_KEPT = 2
_KEPT: dict[str, tuple[object, "Copy"]] = {}
_LOCK = threading.Lock()


class Copy:
    """A temporary folder, which is removed when nobody has this any more.

    Args:
        name: The name in it.
        original: What the copy needs for as long as it exists. Defaults to
            nothing.

    Attributes:
        path: The path of that name.

    Example:

    >>> copy = Copy("model.ckpt-20.h5")
    >>> os.path.basename(copy.path)
    'model.ckpt-20.h5'
    """

    def __init__(self, name: str, original: object = None):
        self._original = original
        folder = tempfile.mkdtemp(prefix="kte-copy-")
        self.path = os.path.join(folder, name)
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)


class Original:
    """A file that is on this machine anyway.

    Args:
        path: Its path.

    Attributes:
        path: The same.
    """

    def __init__(self, path: str):
        self.path = path


def local_copy(path: str, suffixes: Sequence[str] = ("",)) -> Copy | Original:
    """Gives a file on this machine with the content of another.

    Args:
        path: A path, or a URL, of which a copy is made.
        suffixes: What the names of the files end with that `path` stands for.
            Defaults to that of one file, none.

    Returns:
        Something to hold for as long as its `path` is used.

    Raises:
        FileNotFoundError: There is no such file.

    Example:

    >>> local_copy("/tmp/file").path
    '/tmp/file'
    """
    if not is_url(path):
        return Original(path)
    version = tuple(paths.version(path + suffix) for suffix in suffixes)
    with _LOCK:
        known, copy = _KEPT.get(path, (None, None))
    if copy is None or known != version:
        copy = Copy(os.path.basename(path))
        for suffix in suffixes:
            transfers.fetch(path + suffix, copy.path + suffix)
        _keep(path, version, copy)
    return copy


def has_wildcards(path: str) -> bool:
    """Whether TensorFlow takes a path for a pattern that does not match it.

    Example:

    >>> has_wildcards("/tmp/a[b]"), has_wildcards("/tmp/a*b")
    (True, False)
    """
    # Windows has other patterns.
    return os.name != "nt" and ("[" in path or "\\" in path)


def without_wildcards(
    files: Copy | Original, suffixes: Sequence[str]
) -> Copy | Original:
    """Gives files a path that TensorFlow does not take for a pattern.

    TensorFlow looks for the checkpoint `a[b]/model.ckpt` in a folder `ab`.

    Args:
        files: The files.
        suffixes: What their names end with.

    Returns:
        The same, or links to them, if their path has a bracket or a backslash.

    Example:

    >>> without_wildcards(Original("/tmp/a*b"), [""]).path
    '/tmp/a*b'
    """
    path = os.path.abspath(files.path)
    if not has_wildcards(path):
        return files
    links = Copy("links", files)
    for suffix in suffixes:
        os.symlink(path + suffix, links.path + suffix)
    return links


def keep(url: str, copy: Copy) -> None:
    """Remembers the copy of a file that was just written.

    Args:
        url: The file.
        copy: What was written there.

    Example:

    >>> copy = Copy("file")
    >>> with open(copy.path, "wb") as file:
    ...     size = file.write(b"content")
    >>> transfers.put(copy.path, "memory://bucket/file")
    >>> keep("memory://bucket/file", copy)
    >>> local_copy("memory://bucket/file") is copy
    True
    """
    _keep(url, (paths.version(url),), copy)


def _keep(url: str, version: object, copy: Copy) -> None:
    with _LOCK:
        _KEPT.pop(url, None)
        _KEPT[url] = (version, copy)
        while len(_KEPT) > _MOST_KEPT:
            del _KEPT[next(iter(_KEPT))]
