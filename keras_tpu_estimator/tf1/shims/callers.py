"""The line of the user's code that uses a name, for errors."""

import pathlib
import sys

_PACKAGE = str(pathlib.Path(__file__).parents[2])


def users_line() -> str:
    """Returns the place of the user's code that called the current code.

    Returns:
        A sentence such as 'Used in model.py, line 12.', or "" if no user code is
        running.

    Example:

    >>> users_line()
    'Used in <doctest ...>, line 1.'
    """
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        # `<frozen runpy>` runs this package's commands, or a user's module.
        is_pythons = name.startswith("<frozen ") or "importlib" in name
        if not name.startswith(_PACKAGE) and not is_pythons:
            return f"Used in {name}, line {frame.f_lineno}."
        frame = frame.f_back  # type: ignore[assignment]
    return ""
