"""Tracing and compilation: progress messages, and no garbage collection.

A trace consists of many objects that live as long as it does. Python's collector would
visit them, and all modules, again and again, for a fifth of the time of a trace.
"""

import contextlib
import gc
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from keras_tpu_estimator.base.common import notebook

_logger = logging.getLogger("keras_tpu_estimator")
# Whether a `Waiting` block shows messages.
_shows: ContextVar[bool] = ContextVar("shows", default=False)


class _Collector:
    """Python's garbage collector, which blocks in several threads may pause."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pauses = 0
        self._was_enabled = False

    def pause(self) -> None:
        """Disables the collector until each pause has ended."""
        with self._lock:
            if not self._pauses:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._pauses += 1

    def resume(self) -> None:
        """Ends a pause; enables the collector if it was enabled before."""
        with self._lock:
            self._pauses -= 1
            if not self._pauses and self._was_enabled:
                gc.enable()

    def end_all(self) -> None:
        """Ends all pauses, whose threads a forked process does not have."""
        self._lock = threading.Lock()
        if self._pauses and self._was_enabled:
            gc.enable()
        self._pauses = 0


_collector = _Collector()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_collector.end_all)


class Waiting:
    """Shows the messages of `announce` in a `with` block, and then removes them.

    Python's garbage collector pauses meanwhile. A terminal or notebook shows the
    messages only if `is_shown` is true.
    """

    def __init__(self, is_shown: bool = False):
        self._is_shown = is_shown

    def __enter__(self) -> None:
        _shows.set(self._is_shown)
        _collector.pause()

    def __exit__(self, *exception: object) -> None:
        _collector.resume()
        _shows.set(False)  # Several threads may be in such blocks.
        show("")
        notebook.clear()


def announce(text: str) -> None:
    """Logs a sentence without its full stop, and shows it inside a `Waiting` block."""
    _logger.info("%s.", text)
    if _shows.get():
        show(f"{text} ...")
        notebook.show(notebook.Line(f"{text} ..."), is_passing=True)


_shown = ""


def show(text: str) -> None:
    """Shows one line on a terminal, in place of the last one; "" removes it."""
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


_is_open = False


def begin() -> None:
    """Notes that the line on the terminal is not finished."""
    global _is_open
    _is_open = True
    logging.getLogger("keras_tpu_estimator").addFilter(_end_before)


def finished() -> None:
    """Notes that the line is finished."""
    global _is_open
    _is_open = False


def end() -> None:
    """Finishes the line, so that the next text starts a new line."""
    if _is_open:
        finished()
        sys.stdout.write("\n")
        sys.stdout.flush()


@contextlib.contextmanager
def ended() -> Iterator[None]:
    """Finishes the line before a `with` block and after it."""
    end()
    try:
        yield
    finally:
        end()


def _end_before(record: logging.LogRecord) -> bool:
    """Finishes the line before a log message that the terminal shows."""
    if _is_open and any(
        record.levelno >= handler.level and _is_terminal(handler)
        for handler in _handlers(logging.getLogger(record.name))
    ):
        end()
    return True


def _handlers(logger: logging.Logger) -> list[logging.Handler]:
    """Returns the handlers of a logger and of those above it."""
    handlers: list[logging.Handler] = []
    above: logging.Logger | None = logger
    while above is not None:
        handlers.extend(above.handlers)
        above = above.parent
    last = logging.lastResort
    return handlers or ([] if last is None else [last])


def _is_terminal(handler: logging.Handler) -> bool:
    """Returns whether a handler writes to a terminal."""
    # absl's handler has another one inside.
    inner: Any = getattr(handler, "python_handler", handler)
    try:
        return bool(inner.stream.isatty())
    except (
        AttributeError,
        ValueError,
    ):  # Users' handlers may have any `stream`, or a closed one.
        return False
