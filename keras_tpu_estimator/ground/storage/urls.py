"""Which paths are URLs, and the file systems behind them."""

import os
import re
from typing import TYPE_CHECKING

from keras_tpu_estimator.ground.base import operating_system
from keras_tpu_estimator.ground.base.types import PathLike

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# Of one letter would be a drive of Windows.
_SCHEME = r"[A-Za-z][A-Za-z0-9+.\-]+"
_URL = re.compile(f"{_SCHEME}://")
_CUT_URL = re.compile(rf"({_SCHEME}):[/\\](?![/\\])(.*)")
_DRIVE = re.compile(r"/[A-Za-z]:")
_LOCAL = ("file", "local")


def is_url(path: PathLike) -> bool:
    """Whether a path is a URL, such as 'gs://bucket/run'.

    Example:

    >>> is_url("gs://bucket/run"), is_url("/bucket/run")
    (True, False)
    """
    return _URL.match(os.fsdecode(path)) is not None


def with_slashes(url: str) -> str:
    """A URL with slashes where `os.path.join` has put backslashes on Windows.

    Example:

    >>> with_slashes("gs://bucket/run")
    'gs://bucket/run'
    """
    return url.replace("\\", "/") if operating_system.IS_WINDOWS else url


def located(
    url: PathLike,
) -> tuple["AbstractFileSystem", str]:
    """Finds the file system of a URL.

    Args:
        url: A URL.

    Returns:
        The file system, and what it calls the path.

    Raises:
        ImportError: fsspec is not installed, or its driver for such URLs.
        ValueError: There is no such kind of URL, or it is a local path.

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
            f"{url!r} is on this machine. Expected a path there, or the URL "
            f"of a store elsewhere. Pass {rest!r}."
        )
    try:
        import fsspec.core
    except ImportError as error:
        raise ImportError(
            f"{url!r} is a URL, and fsspec, by which files there are read and "
            "written, is not installed. Run `pip install "
            "'keras-tpu-estimator[remote]'`, and install fsspec's driver of "
            "the store: gcsfs for gs://, s3fs for s3://."
        ) from error
    # Other processes write there, too, so listings are never old.
    return fsspec.core.url_to_fs(url, use_listings_cache=False)


def check(path: str) -> None:
    """Checks that a path, if it is a URL, is one that can be used.

    Raises:
        ImportError: As `located`.
        ValueError: As `located`, or pathlib has changed the URL.

    Example:

    >>> check("gs:/bucket/run")
    Traceback (most recent call last):
    ...
    ValueError: pathlib has taken a slash out of a URL. Received:
    'gs:/bucket/run'. Pass the string 'gs://bucket/run'.
    """
    cut = _CUT_URL.match(path)
    if cut is not None:
        rest = cut[2].replace("\\", "/")
        raise ValueError(
            f"pathlib has taken a slash out of a URL. Received: {path!r}. Pass "
            f"the string '{cut[1]}://{rest}'."
        )
    if is_url(path):
        located(path)
