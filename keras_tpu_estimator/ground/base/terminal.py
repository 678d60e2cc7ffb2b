"""A text on the terminal that is gone when what it tells of is over."""

import contextlib
import sys
from collections.abc import Iterator

_shown = ""


def show(text: str) -> None:
    """Puts a text in place of what was shown, if there is a terminal.

    Args:
        text: One line, or "" for nothing.
    """
    global _shown
    terminal = sys.stderr
    if text == _shown or terminal is None or not terminal.isatty():
        return
    # To the beginning of the line, and away with what is in it.
    terminal.write(f"\r\x1b[K{text}")
    terminal.flush()
    _shown = text


@contextlib.contextmanager
def showing(text: str) -> Iterator[None]:
    """Shows a text in a `with` block."""
    show(text)
    try:
        yield
    finally:
        show("")
