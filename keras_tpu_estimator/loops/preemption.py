"""Stopping at the end of a loop when the process is asked to stop."""

import logging
import signal
import sys
import threading
from types import FrameType
from typing import Any
from typing import NoReturn
from typing import Self

from keras_tpu_estimator.hooks.session_run_hook import SessionRunContext
from keras_tpu_estimator.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.hooks.session_run_hook import SessionRunValues

_logger = logging.getLogger("keras_tpu_estimator")

# The signals, and what Python itself does with each.
_PYTHONS = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}


class Preemption(SessionRunHook):
    """Inside its `with` block, a first SIGTERM or SIGINT only asks to stop.

    A second one stops the process at once. Handlers that are not Python's own
    are left alone, and so is everything outside the main thread.

    Example:

    >>> with Preemption() as preemption:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     preemption.is_requested()
    True
    """

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._replaced: dict[signal.Signals, Any] = {}

    def is_requested(self) -> bool:
        """Whether a signal has come."""
        return self._received is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number, pythons in _PYTHONS.items():
            if signal.getsignal(number) == pythons:
                self._replaced[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: Any) -> None:
        for number, handler in self._replaced.items():
            signal.signal(number, handler)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ends training if a signal has come."""
        del run_values
        if self.is_requested():
            run_context.request_stop()

    def exit_if_requested(self, checkpoint: str | None) -> None:
        """Ends the program if a signal has come.

        Args:
            checkpoint: The latest checkpoint, for the log.

        Raises:
            SystemExit: With 128 and the number of the signal as its code.
            KeyboardInterrupt: It was SIGINT in an interactive session, which
                is to go on.
        """
        if self._received is None:
            return
        _logger.warning(
            "Training has stopped because of %s. %s",
            self._received.name,
            f"The latest checkpoint is {checkpoint}."
            if checkpoint
            else "There is no checkpoint.",
        )
        if _is_for_prompt(self._received):
            raise KeyboardInterrupt
        sys.exit(128 + self._received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Nothing is logged here, for this may interrupt the logging of a line.
        del frame
        if self._received is not None:
            _stop_at_once(number)
        self._received = signal.Signals(number)


def _stop_at_once(number: int) -> NoReturn:
    """Does what would have happened without any handler."""
    if _is_for_prompt(number):
        raise KeyboardInterrupt
    # Killed, and not by an exception: what waits for threads may hang.
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    raise SystemExit(128 + number)


def _is_for_prompt(number: int) -> bool:
    # Python and Jupyter have a prompt where somebody can type.
    return number == signal.SIGINT and hasattr(sys, "ps1")
