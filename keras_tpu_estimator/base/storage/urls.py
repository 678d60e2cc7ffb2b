"""URLs among paths, and their file systems."""

import os
import re
from typing import TYPE_CHECKING

from keras_tpu_estimator.base.common import machine
from keras_tpu_estimator.base.common.types import PathLike

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# One letter would be a Windows drive.
_SCHEME = r"[A-Za-z][A-Za-z0-9+.\-]+"
_URL = re.compile(f"{_SCHEME}://")
_CUT_URL = re.compile(rf"({_SCHEME}):[/\\](?![/\\])(.*)")
_DRIVE = re.compile(r"/[A-Za-z]:")
_LOCAL = ("file", "local")


def is_url(path: PathLike) -> bool:
    """Returns whether a path is a URL, such as 'gs://bucket/run'.

    Example:

    >>> is_url("gs://bucket/run"), is_url("/bucket/run")
    (True, False)
    """
    return _URL.match(os.fsdecode(path)) is not None


def with_slashes(url: str) -> str:
    """Returns a URL with slashes instead of the backslashes of `os.path.join` on
    Windows.

    Example:

    >>> with_slashes("gs://bucket/run")
    'gs://bucket/run'
    """
    return url.replace("\\", "/") if machine.IS_WINDOWS else url


def located(
    url: PathLike,
) -> tuple["AbstractFileSystem", str]:
    """Returns the file system of a URL, and its path there.

    Raises:
        ImportError: fsspec or its driver for the URL is not installed.
        ValueError: The URL's scheme is unknown, or it is a local path.

    Example:

    >>> filesystem, path = located("memory://bucket/run")
    >>> path
    '/bucket/run'
    """
    url = with_slashes(os.fsdecode(url))
    scheme, _, rest = url.partition("://")
    if scheme.lower() in _LOCAL:
        # 'file:///C:/runs' is 'C:/runs'.
        rest = rest[1:] if _DRIVE.match(rest) else rest
        raise ValueError(
            f"A URL must be that of a remote store. Received: {url!r}, which is "
            f"a local path. Pass {rest!r}."
        )
    try:
        import fsspec.core
    except ImportError as error:
        raise ImportError(
            f"The URL {url!r} needs fsspec, which is not installed. Run `pip "
            "install 'keras-tpu-estimator[remote]'`, and install fsspec's "
            "driver of the store: gcsfs for gs://, s3fs for s3://."
        ) from error
    # Other processes also write there, so listings must not be cached.
    return fsspec.core.url_to_fs(url, use_listings_cache=False)


def check(path: str) -> None:
    """Checks that a path, if it is a URL, can be used.

    Raises:
        ImportError: As in `located`.
        ValueError: As in `located`, or pathlib has changed the URL.

    Example:

    >>> check("gs:/bucket/run")
    Traceback (most recent call last):
    ...
    ValueError: A URL must have two slashes, one of which pathlib has removed.
    Received: 'gs:/bucket/run'. Pass the string 'gs://bucket/run'.
    """
    cut = _CUT_URL.match(path)
    if cut is not None:
        rest = cut[2].replace("\\", "/")
        raise ValueError(
            "A URL must have two slashes, one of which pathlib has removed. "
            f"Received: {path!r}. Pass the string '{cut[1]}://{rest}'."
        )
    if is_url(path):
        located(path)
