"""Files that only this user can have written.

Unpickling, or loading a compiled program, can run any code. Therefore the file and all
of its parent folders must belong to this user or to root, and must not be writable for
others, except folders in which others may only add names, such as /tmp. ssh checks its
keys in the same way.
"""

import os
import stat

from keras_tpu_estimator.base.common import system
from keras_tpu_estimator.base.common.field_checks import directory_string
from keras_tpu_estimator.base.storage import shared_files
from keras_tpu_estimator.base.storage.paths import is_url


def folder_string(name: str, value: object) -> str:
    """Returns a local folder, which may be missing, as a string; rejects URLs."""
    folder = directory_string(name, value)
    system.check_is_posix(
        f"{name}, a folder of compiled programs,",
        "Loading a program runs it, and only Linux and macOS report who may write "
        "to a file. Omit it, and set JAX_COMPILATION_CACHE_DIR instead.",
    )
    if is_url(folder):
        raise ValueError(
            f"{name} must be a local folder. Received: {folder!r}. Loading a "
            "program runs it, and a store does not report who may write to a "
            "URL. Pass a local folder, and copy the files."
        )
    return folder


def read(path: str) -> bytes:
    """Reads a file, after a check that only this user or root can have written it."""
    # Resolve links first; later links are not followed.
    path = os.path.realpath(path)
    check_folder(os.path.dirname(path))
    descriptor = shared_files.without_waiting(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        # Check the open file, because the name may have changed since.
        _check(path, os.fstat(descriptor))
        return file.read()


def check_folder(path: str) -> None:
    """Raises a `PermissionError` if other users can change or replace a folder."""
    path = os.path.realpath(path)
    while True:
        _check(path, os.stat(path, follow_symlinks=False))
        above = os.path.dirname(path)
        if above == path:
            return
        path = above


def check_cache(folder: str) -> None:
    """Raises a `PermissionError` if other users can change a folder or add files.

    A library reads the files of such a folder without checks. Windows does not report
    who may write there.
    """
    if system.IS_WINDOWS:
        return
    path = os.path.realpath(folder)
    _check(path, os.stat(path), may_add=False)
    check_folder(path)


def _check(path: str, status: os.stat_result, may_add: bool = True) -> None:
    """Raises a `PermissionError` if other users can change a file or folder.

    If they `may_add` names to it, a folder may be one such as /tmp.
    """
    is_folder = stat.S_ISDIR(status.st_mode)
    kind = "folder" if is_folder else "file"
    if status.st_uid not in (os.geteuid(), 0):
        fault = f"a {kind} of the user {status.st_uid}"
        change = f"chown {os.geteuid()}"
    elif status.st_mode & 0o022 and not (
        # In such folders, others may only add names.
        may_add and is_folder and status.st_mode & stat.S_ISVTX
    ):
        fault = f"the mode {stat.S_IMODE(status.st_mode):03o}"
        change = "chmod go-w"
    else:
        return
    raise PermissionError(
        f"Only this user (or root) must be able to write to the {kind} {path!r}, "
        f"because its content runs as a part of this program. Received: {fault}. "
        f"Use another {kind}, or, if you trust its content, run `{change} "
        f"{path}`."
    )
