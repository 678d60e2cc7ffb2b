"""Folders of exports, which are named by the time and appear only when complete."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths, shared_files, transfers
from keras_tpu_estimator.base.storage.paths import is_url
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.atomic.checksum import NO_TOKEN

_ATTEMPTS = 10
_EXTRA = "assets.extra"


@contextlib.contextmanager
def export_folder(
    base: PathLike, clock: Callable[[], float] = time.time
) -> Iterator[tuple[str, str]]:
    """Yields a temporary folder, and the final path that it gets if the block succeeds.

    The final name is the time in seconds since 1970, or the next free number. If all
    names are taken, `RuntimeError` is raised. If `base` is a URL, the new folder is
    uploaded.
    """
    base = os.fsdecode(base)
    if is_url(base):
        with _uploaded_folder(base, int(clock())) as names:
            yield names
        return
    existed = os.path.isdir(base)
    os.makedirs(base, exist_ok=True)
    try:
        commit.remove_abandoned(base)
        with _reserved(base, int(clock())) as (temporary, final):
            yield temporary, final
            shared_files.replace(temporary, final)
    except BaseException:
        if not existed:
            with contextlib.suppress(OSError):
                os.rmdir(base)
        raise


@contextlib.contextmanager
def _uploaded_folder(base: str, start: int) -> Iterator[tuple[str, str]]:
    """Makes a local folder, and uploads it to a URL at the end."""
    stamps = range(start, start + _ATTEMPTS)
    names = (f"{paths.canonical(base)}/{stamp}" for stamp in stamps)
    final = next((n for n in names if not paths.is_directory(n)), None)
    if final is None:
        raise _no_free_name(base, start)
    with tempfile.TemporaryDirectory(prefix="kte-export-") as temporary:
        yield temporary, final
        transfers.put_tree(temporary, final)


def check_assets_extra(assets_extra: object) -> dict[str, str]:
    """Returns checked assets as a dict from paths in `assets.extra` to files."""
    if assets_extra is None:
        return {}
    if not isinstance(assets_extra, Mapping):
        raise TypeError(
            "`assets_extra` must be a dict from paths in the export to "
            f"files. Received: {shown(assets_extra)}. Pass a dict."
        )
    checked = {}
    for target, source in assets_extra.items():
        path = os.path.normpath(os.fspath(target))
        if os.path.isabs(path) or path.split(os.sep)[0] in ("..", "."):
            raise ValueError(
                "The keys of `assets_extra` must be paths below "
                f"{_EXTRA!r}. Received: {target!r}. Pass a name, such as "
                f"{os.path.basename(os.fspath(source))!r}."
            )
        if not os.path.isfile(source):
            raise ValueError(
                f"The file of `assets_extra[{target!r}]` must exist. Received: "
                f"{os.fspath(source)!r}. Pass the path of a file."
            )
        checked[path] = os.fspath(source)
    return checked


def copy_assets(folder: str, assets: Mapping[str, PathLike]) -> None:
    """Copies the assets of `check_assets_extra` into an export."""
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


@contextlib.contextmanager
def _reserved(base: str, start: int) -> Iterator[tuple[str, str]]:
    """Makes a temporary folder for the first free final path, and yields both.

    If the process is killed, a later export removes the folder.
    """
    for stamp in range(start, start + _ATTEMPTS):
        final = os.path.join(base, str(stamp))
        # The name with which TensorFlow reserves the final path.
        name = os.path.join(base, f"temp-{stamp}")
        if os.path.exists(final) or os.path.exists(name):
            continue
        with contextlib.ExitStack() as block:
            try:
                reserved = block.enter_context(commit.partial_file(name, NO_TOKEN))
            except FileExistsError:
                continue
            temporary = f"{reserved}.folder"
            os.mkdir(temporary)
            block.callback(shutil.rmtree, temporary, ignore_errors=True)
            yield temporary, final
            return
    raise _no_free_name(base, start)


def _no_free_name(base: str, start: int) -> RuntimeError:
    return RuntimeError(
        "The folder of an export must have a free name, which is the time. "
        f"Received: existing folders from {start} to {start + _ATTEMPTS - 1} in "
        f"{base!r}. Export into another folder, or less often."
    )
