"""What is told while tracing and compiling take their time."""

import logging
from contextvars import ContextVar

from keras_tpu_estimator.ground.base import terminal as _terminal

_logger = logging.getLogger("keras_tpu_estimator")
# Whether a `with` block around this shows what is told.
_shows: ContextVar[bool] = ContextVar("shows", default=False)


class Waiting:
    """Shows on the terminal what `tell` says in a `with` block.

    What is shown is gone again at its end.

    Args:
        is_shown: Whether it is shown, if there is a terminal. Defaults to
            `False`.
    """

    def __init__(self, is_shown: bool = False):
        self._is_shown = is_shown

    def __enter__(self) -> None:
        _shows.set(self._is_shown)

    def __exit__(self, *exception: object) -> None:
        _shows.set(False)  # Several threads may be in here.
        _terminal.show("")


def tell(text: str) -> None:
    """Says what takes its time now: in the log, and as `Waiting` has it.

    Args:
        text: A sentence without its full stop.
    """
    _logger.info("%s.", text)
    if _shows.get():
        _terminal.show(f"{text} ...")
