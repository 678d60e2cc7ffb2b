"""Progress messages during tracing and compilation."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar

from keras_tpu_estimator.base.common import notebook

_logger = logging.getLogger("keras_tpu_estimator")
# Whether a `Waiting` block shows messages.
_shows: ContextVar[bool] = ContextVar("shows", default=False)


class Waiting:
    """Shows the messages of `tell` in a `with` block, and then removes them.

    Args:
        is_shown: Whether a terminal or notebook shows them. Defaults to
            `False`.
    """

    def __init__(self, is_shown: bool = False):
        self._is_shown = is_shown

    def __enter__(self) -> None:
        _shows.set(self._is_shown)

    def __exit__(self, *exception: object) -> None:
        _shows.set(False)  # Several threads may be in such blocks.
        show("")
        notebook.clear()


def tell(text: str) -> None:
    """Logs the current activity, and shows it inside a `Waiting` block.

    Args:
        text: A sentence without its full stop.
    """
    _logger.info("%s.", text)
    if _shows.get():
        show(f"{text} ...")
        notebook.show(notebook.Line(f"{text} ..."), is_passing=True)


_shown = ""


def show(text: str) -> None:
    """Shows a text on a terminal, in place of the last one.

    Args:
        text: One line, or "" for none.
    """
    global _shown
    terminal = sys.stderr
    if text == _shown or terminal is None or not terminal.isatty():
        return
    # This erases the current line.
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
