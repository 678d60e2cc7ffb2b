"""Who uses a name: the line of the user's that an error speaks of."""

import pathlib
import sys

_PACKAGE = str(pathlib.Path(__file__).parents[2])


def users_line() -> str:
    """Where the code of the user is that called what is being run.

    Returns:
        A sentence such as 'Used in model.py, line 12.', or nothing if no code
        of the user's is running.

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
