"""Lines of the user's code, and a test of whether a file belongs to it."""

import os
import sysconfig
from typing import NamedTuple

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
    'base/common/user_files.py'
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
