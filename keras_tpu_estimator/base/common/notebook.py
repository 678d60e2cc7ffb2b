"""One output below a notebook cell, whose content is replaced."""

import html
import sys
from typing import Any

# The newest output, and the number of its cell.
_display: Any = None
_cell: object = None
# Whether its content is temporary.
_is_passing = False


class Line:
    """A line of text, with a progress bar if the completed fraction is known."""

    def __init__(self, text: str, fraction: float | None = None):
        self._text, self._fraction = text, fraction

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        if not self._text:
            return ""
        bar = ""
        if self._fraction is not None:
            bar = (
                f'<progress value="{self._fraction:.4f}" max="1" '
                'style="width: 16em; vertical-align: middle"></progress> '
            )
        return f"<div>{bar}<code>{html.escape(self._text)}</code></div>"


def is_here() -> bool:
    """Returns whether the program runs in a notebook."""
    return _shell() is not None


def show(line: Line, is_passing: bool = False) -> None:
    """Shows a line in place of the cell's last one; `clear` removes passing lines."""
    global _display, _cell, _is_passing
    shell = _shell()
    if shell is None:
        return
    _is_passing = is_passing
    if _display is not None and _cell == shell.execution_count:
        _display.update(line)
        return
    display = sys.modules["IPython.display"].display
    _display, _cell = display(line, display_id=True), shell.execution_count


def clear() -> None:
    """Removes a temporary line."""
    if _is_passing:
        show(Line(""))


def leave() -> None:
    """Keeps the current line; the next one appears below it."""
    global _display
    _display = None


def _shell() -> Any:
    """Returns IPython's shell in a notebook; `None` on a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None
