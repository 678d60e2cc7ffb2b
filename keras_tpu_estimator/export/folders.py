"""Folders of exports: named by the time, there whole or not at all."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping

from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.types import PathLike
from keras_tpu_estimator.ground.storage import paths, shared_files, transfers
from keras_tpu_estimator.ground.storage.urls import is_url

_ATTEMPTS = 10
_EXTRA = "assets.extra"


@contextlib.contextmanager
def export_folder(
    base: PathLike, clock: Callable[[], float] = time.time
) -> Iterator[tuple[str, str]]:
    """Gives a temporary folder, which gets its name when the block succeeds.

    Args:
        base: The folder to make it in, or its URL: what is made then is copied
            there.
        clock: Tells the seconds since 1970. Defaults to `time.time`.

    Yields:
        The path of the temporary folder, and its path in the end.

    Raises:
        RuntimeError: There are folders of all the names it could have.

    Example:

    >>> import tempfile
    >>> base = tempfile.mkdtemp()
    >>> with export_folder(base, clock=lambda: 12.5) as (temporary, final):
    ...     os.listdir(base)
    ['temp-12']
    >>> os.listdir(base)
    ['12']
    """
    base = os.fsdecode(base)
    if is_url(base):
        with _uploaded_folder(base, int(clock())) as names:
            yield names
        return
    existed = os.path.isdir(base)
    os.makedirs(base, exist_ok=True)
    temporary, final = _reserved(base, int(clock()))
    try:
        yield temporary, final
        shared_files.replace(temporary, final)
    except BaseException:
        with contextlib.suppress(OSError):
            paths.remove(temporary)
        if not existed:
            with contextlib.suppress(OSError):
                os.rmdir(base)
        raise


@contextlib.contextmanager
def _uploaded_folder(base: str, start: int) -> Iterator[tuple[str, str]]:
    """Gives a folder on this machine, and copies it to a URL in the end."""
    stamps = range(start, start + _ATTEMPTS)
    names = (f"{paths.canonical(base)}/{stamp}" for stamp in stamps)
    final = next((n for n in names if not paths.is_directory(n)), None)
    if final is None:
        raise _no_free_name(base, start)
    with tempfile.TemporaryDirectory(prefix="kte-export-") as temporary:
        yield temporary, final
        transfers.put_tree(temporary, final)


def check_assets_extra(assets_extra: object) -> dict[str, str]:
    """Checks which files are to be put beside a model.

    Args:
        assets_extra: Dict from paths in `assets.extra` to files, or `None`.

    Returns:
        The dict; an empty one for `None`.

    Raises:
        TypeError: It is no dict.
        ValueError: A path leads elsewhere, or a file does not exist.
    """
    if assets_extra is None:
        return {}
    if not isinstance(assets_extra, Mapping):
        raise TypeError(
            "`assets_extra` should be a dict from paths in the export to "
            f"files. Received: {shown(assets_extra)}"
        )
    checked = {}
    for target, source in assets_extra.items():
        path = os.path.normpath(os.fspath(target))
        if os.path.isabs(path) or path.split(os.sep)[0] in ("..", "."):
            raise ValueError(
                "The keys of `assets_extra` should be paths below "
                f"{_EXTRA!r}. Received: {target!r}. Pass a name, such as "
                f"{os.path.basename(os.fspath(source))!r}."
            )
        if not os.path.isfile(source):
            raise ValueError(
                f"The file of `assets_extra[{target!r}]` does not exist. "
                f"Received: {os.fspath(source)!r}"
            )
        checked[path] = os.fspath(source)
    return checked


def copy_assets(folder: str, assets: Mapping[str, PathLike]) -> None:
    """Copies what `check_assets_extra` returned into an export."""
    for target, source in assets.items():
        path = os.path.join(folder, _EXTRA, target)
        if os.path.exists(path):
            raise ValueError(
                "The keys of `assets_extra` must differ by more than upper and "
                f"lower case on this file system. Received: {sorted(assets)}. "
                f"Rename {target!r}."
            )
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copyfile(source, path)


def _reserved(base: str, start: int) -> tuple[str, str]:
    """Makes the first temporary folder whose names are free."""
    for stamp in range(start, start + _ATTEMPTS):
        temporary = os.path.join(base, f"temp-{stamp}")
        final = os.path.join(base, str(stamp))
        if os.path.exists(final):
            continue
        with contextlib.suppress(FileExistsError):
            os.mkdir(temporary)
            return temporary, final
    raise _no_free_name(base, start)


def _no_free_name(base: str, start: int) -> RuntimeError:
    return RuntimeError(
        "An export gets a folder named by the time. Expected a free name from "
        f"{start} to {start + _ATTEMPTS - 1} in {base!r}. All of them exist: "
        "export into another folder, or less often."
    )
