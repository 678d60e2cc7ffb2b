"""A line of the user's code, as messages show it."""

import os
from typing import NamedTuple


class SourceLine(NamedTuple):
    """A line of the user's code.

    Attributes:
        file: The path of the file.
        number: The number of the line.
    """

    file: str
    number: int

    def __str__(self) -> str:
        # Paths below the current directory are relative.
        path = os.path.relpath(self.file) if os.path.isabs(self.file) else ""
        inside = path and not path.startswith(os.pardir)
        return f"{path if inside else self.file}:{self.number}"
