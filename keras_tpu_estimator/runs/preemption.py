"""Stopping at the end of a loop when the process is asked to stop."""

import logging
import signal
import sys
from typing import Self

from keras_tpu_estimator.ground.hosts.host_exchange import HostExchange
from keras_tpu_estimator.runs.stop_signals import StopSignals
from keras_tpu_estimator.runs.stop_signals import is_for_prompt
from keras_tpu_estimator.spec.hooks.session_run_hook import SessionRunContext
from keras_tpu_estimator.spec.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.spec.hooks.session_run_hook import SessionRunValues

_logger = logging.getLogger("keras_tpu_estimator")


class Preemption(SessionRunHook):
    """Inside its `with` block, a signal ends training as a hook would.

    Example:

    >>> import signal
    >>> with Preemption() as preemption:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     preemption.is_requested()
    True
    """

    allows_run_ahead = True

    def __init__(self) -> None:
        self._signals = StopSignals()

    def is_requested(self) -> bool:
        """Whether a signal has come."""
        return self._signals.received is not None

    def agree(self, exchange: HostExchange, stops: bool) -> bool:
        """Whether all hosts stop, as one was asked to, by hooks or a signal.

        Args:
            exchange: With the other hosts.
            stops: Whether hooks want to stop here.
        """
        said = exchange.gather([stops, self._signals.received or 0])
        received = max(number for _, number in said)
        if received:
            self._signals.received = signal.Signals(received)
        return bool(received) or any(each for each, _ in said)

    def __enter__(self) -> Self:
        self._signals.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._signals.__exit__(*exception)

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
        received = self._signals.received
        if received is None:
            return
        _logger.warning(
            "Training has stopped because of %s. %s",
            received.name,
            f"The latest checkpoint is {checkpoint}."
            if checkpoint
            else "There is no checkpoint.",
        )
        if is_for_prompt(received):
            raise KeyboardInterrupt
        sys.exit(128 + received)
