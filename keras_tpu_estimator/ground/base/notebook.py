"""One place below a cell of a notebook, whose content is replaced."""

import html
import sys
from typing import Any

# The newest place, and the number of the cell that it is in.
_place: Any = None
_cell: object = None
# Whether what it shows is only for the time being.
_is_passing = False


class Line:
    """A line of text, and a bar if it is known how far things are.

    Args:
        text: The text.
        done: The part that is done, from 0 to 1. Defaults to `None`.

    Example:

    >>> Line("step 3 of 4", 0.75)
    step 3 of 4
    """

    def __init__(self, text: str, done: float | None = None):
        self._text, self._done = text, done

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        if not self._text:
            return ""
        bar = ""
        if self._done is not None:
            bar = (
                f'<progress value="{self._done:.4f}" max="1" '
                'style="width: 16em; vertical-align: middle"></progress> '
            )
        return f"<div>{bar}<code>{html.escape(self._text)}</code></div>"


def is_here() -> bool:
    """Whether the program runs in a notebook, whatever shows that."""
    return _shell() is not None


def show(line: Line, is_passing: bool = False) -> None:
    """Puts a line in the place of this call, if there is a notebook.

    Args:
        line: The line.
        is_passing: Whether `clear` is to remove it. Defaults to `False`.
    """
    global _place, _cell, _is_passing
    shell = _shell()
    if shell is None:
        return
    _is_passing = is_passing
    if _place is not None and _cell == shell.execution_count:
        _place.update(line)
        return
    display = sys.modules["IPython.display"].display
    _place, _cell = display(line, display_id=True), shell.execution_count


def clear() -> None:
    """Removes a line that was for the time being."""
    if _is_passing:
        show(Line(""))


def leave() -> None:
    """Leaves in its place what is shown: the next line gets one of its own."""
    global _place
    _place = None


def _shell() -> Any:
    """IPython's shell, if it belongs to a notebook; a terminal is none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None
