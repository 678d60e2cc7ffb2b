"""Path operations of `os`, also for URLs.

Only a file that a store reports as missing counts as missing. Every other failure is an
error, because training would restart from scratch in a seemingly empty directory.
"""

import contextlib
import glob
import os
import re
import unicodedata
from typing import TYPE_CHECKING, BinaryIO

from keras_tpu_estimator.base.common import system
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import shared_files

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# One letter would be a Windows drive.
_SCHEME = r"[A-Za-z][A-Za-z0-9+.\-]+"
_URL = re.compile(f"{_SCHEME}://")
_CUT_URL = re.compile(rf"({_SCHEME}):[/\\](?![/\\])(.*)")
_DRIVE = re.compile(r"/[A-Za-z]:")
_LOCAL = ("file", "local")


def is_url(path: PathLike) -> bool:
    """Returns whether a path is a URL, such as 'gs://bucket/run'."""
    return _URL.match(os.fsdecode(path)) is not None


def with_slashes(url: str) -> str:
    """Returns a URL with slashes where `os.path.join` on Windows puts backslashes."""
    return url.replace("\\", "/") if system.IS_WINDOWS else url


def located(
    url: PathLike,
) -> tuple["AbstractFileSystem", str]:
    """Returns the file system of a URL, and its path there.

    A missing driver raises an `ImportError`. An unknown scheme, or the URL of a local
    path, raises a `ValueError`.

    >>> filesystem, path = located("memory://bucket/run")
    >>> path
    '/bucket/run'
    """
    url = with_slashes(os.fsdecode(url))
    scheme, _, local_path = url.partition("://")
    if scheme.lower() in _LOCAL:
        # 'file:///C:/runs' is 'C:/runs'.
        local_path = local_path[1:] if _DRIVE.match(local_path) else local_path
        raise ValueError(
            f"A URL must be that of a remote store. Received: {url!r}, which is "
            f"a local path. Pass {local_path!r}."
        )
    try:
        import fsspec.core
    except ImportError as error:
        raise ImportError(
            f"The URL {url!r} needs fsspec, which is not installed. Run `pip "
            "install 'keras-tpu-estimator[remote]'`, and install fsspec's "
            "driver of the store: gcsfs for gs://, s3fs for s3://."
        ) from error
    try:
        # Other processes also write there, so listings must not be cached.
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise ImportError(
            f"The URL {url!r} needs a driver for {scheme}://, which is not "
            f"installed. {str(error).rstrip('.')}."
        ) from error


def check(path: str) -> None:
    """Checks that a path, if it is a URL, is valid and was not changed by pathlib."""
    cut = _CUT_URL.match(path)
    if cut is not None:
        store_path = cut[2].replace("\\", "/")
        raise ValueError(
            "A URL must have two slashes, one of which pathlib has removed. "
            f"Received: {path!r}. Pass the string '{cut[1]}://{store_path}'."
        )
    if is_url(path):
        located(path)


# https://learn.microsoft.com/windows/win32/fileio/naming-a-file
_RESERVED_BY_WINDOWS = re.compile(
    r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?"
    r'|.*[<>:"|?*\x00-\x1f].*|.*[. ]',
    re.IGNORECASE,
)


def is_file(path: str) -> bool:
    """Returns whether a file exists."""
    if not is_url(path):
        return os.path.isfile(path)
    return _kind(path) == "file"


def is_directory(path: str) -> bool:
    """Returns whether a directory exists, which at a URL means that it is not empty."""
    if not is_url(path):
        return os.path.isdir(path)
    return _kind(path) == "directory"


def names_in(directory: str) -> list[str]:
    """Returns the names in a directory; a missing directory at a URL has none."""
    if not is_url(directory):
        return os.listdir(directory)
    filesystem, path = located(directory)
    try:
        entries = filesystem.ls(path, detail=False)
    except FileNotFoundError:
        return []
    names = (os.path.basename(entry.rstrip("/")) for entry in entries)
    # Some stores also list an object for the directory itself.
    itself = path.rstrip("/")
    return [
        name
        for name, entry in zip(names, entries, strict=True)
        if entry.rstrip("/") != itself
    ]


def matching(pattern: str) -> list[str]:
    """Returns the sorted paths or URLs that match a pattern as in `glob.glob`."""
    if not is_url(pattern):
        return sorted(glob.glob(pattern))
    filesystem, path = located(pattern)
    return sorted(map(filesystem.unstrip_protocol, filesystem.glob(path)))


def sizes_in(directory: str) -> dict[str, int]:
    """Returns the sizes of all files in a directory and its folders.

    The sorted keys are paths in the directory, with slashes. A missing directory has
    none, a file that is removed meanwhile is left out, and a folder with several links
    counts once.
    """
    if is_url(directory):
        filesystem, path = located(directory)
        files = filesystem.find(path, detail=True)
        start = len(path.rstrip("/")) + 1
        return {name[start:]: files[name]["size"] for name in sorted(files)}
    sizes, visited = {}, set()
    for folder, folders, names in os.walk(directory, followlinks=True):
        real = os.path.realpath(folder)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        # A folder counts under its own name, not under that of a link beside it.
        folders.sort(key=lambda name: os.path.islink(os.path.join(folder, name)))
        for name in names:
            path = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):
                relative = os.path.relpath(path, directory)
                sizes[relative.replace(os.sep, "/")] = os.path.getsize(path)
    return dict(sorted(sizes.items()))


def make_directory(path: str) -> None:
    """Makes a directory; for a URL it does nothing, because writing makes it."""
    if not is_url(path):
        os.makedirs(path, exist_ok=True)


def remove(path: str, last: str | None = None) -> None:
    """Removes a file, a link, or a folder with everything in it.

    This package removes everything through this function. It never follows links. It
    raises an error if the path is missing, except in some stores, or if the folder
    receives files during the removal.

    Args:
        last: The name of a file in a local folder that is removed only after everything
            else.
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
    """Opens a file for reading; a missing file raises a `FileNotFoundError`."""
    if not is_url(path):
        return shared_files.opened(os.fsdecode(path))
    filesystem, path = located(path)
    return filesystem.open(path, "rb")


def version(path: str) -> tuple[object, ...]:
    """Returns a value that changes with the content of a file, which must exist."""
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
    """Returns one name for all names of a directory.

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
        # `exists`, `isfile` and `isdir` report any failure as a missing file.
        return filesystem.info(path)["type"]
    except FileNotFoundError:
        return None


def check_name(what: str, name: str) -> None:
    """Checks that Windows, if used, does not reserve a file or folder name."""
    if system.IS_WINDOWS and _RESERVED_BY_WINDOWS.fullmatch(name):
        raise ValueError(
            f"{what} must make a file name that Windows allows, without "
            '< > : " | ? * and without a dot or space at its end. Received: '
            f"{name!r}. Choose another name."
        )


def check_folder_name(what: str, path: str) -> None:
    """Checks that a folder can have its name, and that no other folder has it.

    On Windows and macOS, 'Test' and 'test' are one folder. The folder may be missing,
    and URLs are not checked.
    """
    if is_url(path):
        return
    name = os.path.basename(path)
    check_name(what, name)
    other = _other_spelling(path)
    if other is not None:
        raise ValueError(
            f"{what} must differ from earlier names by more than upper and "
            f"lower case on this file system. Received: {name!r}, which is the "
            f"folder {other!r}. Choose another name, or spell it as before."
        )


def _other_spelling(path: str) -> str | None:
    """Returns the name of an existing folder if its case differs from the path's."""
    directory, name = os.path.split(path)
    if not os.path.isdir(path):
        return None
    names = names_in(directory or os.curdir)
    if name in names:
        return None
    alike = (other for other in names if _folded(other) == _folded(name))
    return next(alike, None)


def _folded(name: str) -> str:
    """Returns a key that is equal for names that macOS treats as equal."""
    return unicodedata.normalize("NFD", name).casefold()
