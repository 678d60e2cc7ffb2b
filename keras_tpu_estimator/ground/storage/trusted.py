"""Files that nobody else can have written.

What is unpickled may run anything. So the file, and every folder that it is in,
has to belong to this user or to root, and nobody else may write there; folders
in which others may only add names, such as /tmp, may hold the others, as with
the keys of ssh.
"""

import os
import stat

from keras_tpu_estimator.ground.base.field_checks import directory_string
from keras_tpu_estimator.ground.base.operating_system import check_is_posix
from keras_tpu_estimator.ground.storage.urls import is_url


def folder_string(name: str, value: object) -> str:
    """A folder of this machine as a string.

    Args:
        name: What to call the value in messages.
        value: A `str`, `bytes` or path object.

    Returns:
        The same folder as a `str`. It need not be there.

    Raises:
        TypeError: The value is no path.
        ValueError: It is empty, or a URL.
        NotImplementedError: This is Windows.

    Example:

    >>> folder_string("`save`", "gs://bucket/compiled")
    Traceback (most recent call last):
    ...
    ValueError: `save` should be a folder of this machine. Received: ...
    """
    folder = directory_string(name, value)
    check_is_posix(
        f"{name}, a folder of compiled programs,",
        "Who may write to a file is known on Linux and macOS only, and what is "
        "read is run. Leave it out, and set JAX_COMPILATION_CACHE_DIR instead.",
    )
    if is_url(folder):
        raise ValueError(
            f"{name} should be a folder of this machine. Received: {folder!r}. "
            "Who may write to a URL is not known, and what is read is run: "
            "pass a folder of your own, and copy the files."
        )
    return folder


def read(path: str) -> bytes:
    """Reads a file that nobody else can have written.

    Raises:
        FileNotFoundError: There is no such file.
        PermissionError: Somebody else can have written it.

    Example:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "note"), "w") as file:
    ...     _ = file.write("mine")
    >>> os.chmod(file.name, 0o644)
    >>> read(file.name)
    b'mine'
    >>> os.chmod(file.name, 0o664)
    >>> read(file.name)
    Traceback (most recent call last):
    ...
    PermissionError: Nobody but this user ...chmod go-w ...
    """
    # Of where a link leads to; one that is made since is not followed.
    path = os.path.realpath(path)
    check_folder(os.path.dirname(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        # Of what is open, whatever the name stands for by now.
        _check(path, os.fstat(descriptor))
        return file.read()


def check_folder(path: str) -> None:
    """Checks that nobody else can put files into a folder, or replace it.

    Args:
        path: A folder on this machine.

    Raises:
        FileNotFoundError: There is no such folder.
        PermissionError: Somebody else can.

    Example:

    >>> check_folder("/")
    """
    path = os.path.realpath(path)
    while True:
        _check(path, os.stat(path, follow_symlinks=False))
        above = os.path.dirname(path)
        if above == path:
            return
        path = above


def _check(path: str, status: os.stat_result) -> None:
    is_folder = stat.S_ISDIR(status.st_mode)
    if status.st_uid not in (os.geteuid(), 0):
        found = f"It belongs to the user {status.st_uid}"
        change = f"chown {os.geteuid()}"
    elif status.st_mode & 0o022 and not (
        # There others only add names.
        is_folder and status.st_mode & stat.S_ISVTX
    ):
        found = f"Its mode is {stat.S_IMODE(status.st_mode):03o}"
        change = "chmod go-w"
    else:
        return
    kind = "folder" if is_folder else "file"
    raise PermissionError(
        f"Nobody but this user (or root) should be able to write to the {kind} "
        f"{path!r}: what is in it is run as a part of this program. {found}. "
        f"Use another {kind}, or, if you trust what is in it, `{change} "
        f"{path}`."
    )
