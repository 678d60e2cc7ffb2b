"""The unfinished line of a progress bar on the terminal."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

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
    found: list[logging.Handler] = []
    above: logging.Logger | None = logger
    while above is not None:
        found.extend(above.handlers)
        above = above.parent
    last = logging.lastResort
    return found or ([] if last is None else [last])


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
