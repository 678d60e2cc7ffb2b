"""What is told while tracing and compiling take their time."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar

from keras_tpu_estimator.ground.base import notebook

_logger = logging.getLogger("keras_tpu_estimator")
# Whether a `with` block around this shows what is told.
_shows: ContextVar[bool] = ContextVar("shows", default=False)


class Waiting:
    """Shows what `tell` says in a `with` block, where somebody looks.

    What is shown is gone again at its end.

    Args:
        is_shown: Whether it is shown, if there is a terminal or a notebook.
            Defaults to `False`.
    """

    def __init__(self, is_shown: bool = False):
        self._is_shown = is_shown

    def __enter__(self) -> None:
        _shows.set(self._is_shown)

    def __exit__(self, *exception: object) -> None:
        _shows.set(False)  # Several threads may be in here.
        show("")
        notebook.clear()


def tell(text: str) -> None:
    """Says what takes its time now: in the log, and as `Waiting` has it.

    Args:
        text: A sentence without its full stop.
    """
    _logger.info("%s.", text)
    if _shows.get():
        show(f"{text} ...")
        notebook.show(notebook.Line(f"{text} ..."), is_passing=True)


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
