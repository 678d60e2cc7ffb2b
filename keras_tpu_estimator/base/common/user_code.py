"""The user's code: its files and lines, and tracebacks that show it."""

import contextlib
import os
import sysconfig
import types
from collections.abc import Iterator
from typing import NamedTuple

import keras

_OWN = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_PACKAGES = ("site-packages", "dist-packages")


def is_of_user(file: str) -> bool:
    """Returns whether a file belongs neither to a library nor to this package."""
    parts = file.split(os.sep)
    return not (
        file.startswith((_OWN, *_LIBRARIES)) or any(name in parts for name in _PACKAGES)
    )


def part_of_package(file: str) -> str | None:
    """Returns the file's path within this package, or `None` outside of it.

    >>> part_of_package(__file__)
    'base/common/user_code.py'
    """
    if not file.startswith(_OWN):
        return None
    return file.removeprefix(_OWN).replace(os.sep, "/")


class SourceLine(NamedTuple):
    """A line of the user's code: the path of the file, and the number of the line."""

    file: str
    number: int

    def __str__(self) -> str:
        # Paths below the current directory are relative.
        path = os.path.relpath(self.file) if os.path.isabs(self.file) else ""
        inside = path and not path.startswith(os.pardir)
        return f"{path if inside else self.file}:{self.number}"


class UserFrames(contextlib.ContextDecorator):
    """Removes frames of this package from the tracebacks of errors in user code.

    It is a context manager and a decorator. Frames of this package after the last one
    of the user stay, because they show what the user has called.
    `keras.config.disable_traceback_filtering()` shows all.
    """

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """Filters the tracebacks of an error and of its causes."""
        if error is None or not keras.config.is_traceback_filtering_enabled():
            return
        for cause in _chain(error):
            cause.__traceback__ = _filtered(cause.__traceback__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, its cause or context, and theirs."""
    ids: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in ids:
        ids.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def _filtered(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Returns a traceback without the frames of this package before the user's last."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    files = [entry.tb_frame.f_code.co_filename for entry in entries]
    last = max((at for at, file in enumerate(files) if is_of_user(file)), default=0)
    filtered = None
    for at in reversed(range(len(entries))):
        if at > last or not _is_internal(files[at]):
            entry = entries[at]
            filtered = types.TracebackType(
                filtered, entry.tb_frame, entry.tb_lasti, entry.tb_lineno
            )
    return filtered


def _is_internal(file: str) -> bool:
    return part_of_package(file) is not None or file == contextlib.__file__
