"""Names of folders that users choose, such as that of an evaluation."""

import os
import re
import unicodedata

from keras_tpu_estimator.ground.base import operating_system
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage.urls import is_url

# https://learn.microsoft.com/windows/win32/fileio/naming-a-file
_REFUSED_BY_WINDOWS = re.compile(
    r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?"
    r'|.*[<>:"|?*\x00-\x1f].*|.*[. ]',
    re.IGNORECASE,
)


def check(what: str, name: str) -> None:
    """Checks that a file or folder can have a name on this system.

    Args:
        what: The argument that the name is made of, for messages.
        name: The name.

    Raises:
        ValueError: Windows reserves the name or one of its characters.

    Example:

    >>> check("`name`", "eval_test")
    """
    if operating_system.IS_WINDOWS and _REFUSED_BY_WINDOWS.fullmatch(name):
        raise ValueError(
            f"{what} must make a file name that Windows allows, without "
            '< > : " | ? * and without a dot or space at its end. Received: '
            f"{name!r}. Choose another name."
        )


def check_folder(what: str, path: str) -> None:
    """Checks that a folder can have its name, and that no other one has it.

    On Windows and macOS, 'Test' and 'test' are one folder.

    Args:
        what: As in `check`.
        path: The folder, which may be missing, or a URL.

    Raises:
        ValueError: Windows reserves the name, or the folder exists under a name
            that differs in case.

    Example:

    >>> check_folder("`name`", "/nowhere/eval_test")
    """
    if is_url(path):
        return
    name = os.path.basename(path)
    check(what, name)
    other = _other_spelling(path)
    if other is not None:
        raise ValueError(
            f"{what} must differ from earlier names by more than upper and "
            f"lower case on this file system. Received: {name!r}, which is the "
            f"folder {other!r}. Choose another name, or spell it as before."
        )


def _other_spelling(path: str) -> str | None:
    """The name that an existing folder has, if it is not the last of a path."""
    directory, name = os.path.split(path)
    if not os.path.isdir(path):
        return None
    names = paths.names_in(directory or os.curdir)
    if name in names:
        return None
    alike = (each for each in names if _folded(each) == _folded(name))
    return next(alike, None)


def _folded(name: str) -> str:
    """Returns a key that is equal for names that macOS takes for the same."""
    return unicodedata.normalize("NFD", name).casefold()
