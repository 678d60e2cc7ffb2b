"""The log lines that training writes by default."""

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import (
    LoopHook,
    SessionRunContext,
    SessionRunValues,
)
from keras_tpu_estimator.api.hooks.step_counter import StepCounterHook
from keras_tpu_estimator.files.summary.metric_writer import SeveralWriters

_logger = logging.getLogger("keras_tpu_estimator")
# Notebooks show all lines below the cell, so they should be few.
_BRIEF_SECS = 1.0


class TrainingLogHook(StepCounterHook, LoopHook):
    """A hook that logs the loss, rates and other metrics of the loop.

    They are written to the log, and to metric writers. The first interval
    begins with the session, and the last one ends with it, so that even a short
    training has a log line. In a notebook the log has a line about once a
    second; writers receive all metrics.

    Args:
        batch_size: Examples in a step, or `None` if unknown.
        report: Returns other metrics of the interval by name.
        writer: Receives the metrics, or `None`.
        is_brief: Whether to log few lines. Defaults to `False`.
        clock: Returns the time in seconds. Defaults to `time.monotonic`.
        **intervals: As in `StepCounterHook`.
    """

    allows_run_ahead = True

    def __init__(
        self,
        batch_size: int | None,
        report: Callable[[], dict[str, float]],
        writer: SeveralWriters | None,
        is_brief: bool = False,
        clock: Callable[[], float] = time.monotonic,
        **intervals: Any,
    ):
        super().__init__(**intervals)
        self._batch_size = batch_size
        self._report = report
        self._is_brief = is_brief
        self._clock = clock
        self._reports = writer

    def run_ends(self, start: int) -> Iterable[int]:
        """Returns the steps after which it logs, if it counts steps."""
        return self._timer.steps_from(start)

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Starts the interval."""
        del coord
        self._session = session
        self._timer.update_last_triggered_step(int(session.run("global_step")))
        self._report()
        self._told_at = -math.inf
        self._untold: dict[str, float] = {}
        self._since_told = 0, 0.0

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Does nothing, because `run_is_made` logs."""

    def run_is_made(self, session: Session) -> None:
        """Logs if the interval has passed."""
        step = int(session.run("global_step"))
        if self._timer.should_trigger_for_step(step):
            self._end_interval(step, session.seconds_since_run())

    def close(self, session: Session) -> None:
        """Logs the steps since the last line, if any.

        It precedes the last checkpoint, whose time does not count.
        """
        step = int(session.run("global_step"))
        self._end_interval(step, session.seconds_since_run())
        if self._untold:
            _logger.info(_line(self._untold))

    def _log_and_record(
        self, elapsed_steps: int, elapsed_time: float, global_step: int
    ) -> None:
        loss = float(self._session.run("loss"))
        numbers = self._report()
        rates = self._rates(elapsed_steps, elapsed_time)
        told = {"loss": loss, "step": global_step} | numbers
        if self._is_brief:
            self._log_briefly(told, elapsed_steps, elapsed_time)
        else:
            _logger.info(_line(told))
            self._log(rates)
        if self._reports is not None:
            self._reports.write_report(global_step, {"loss": loss} | numbers | rates)

    def _rates(self, steps: int, seconds: float) -> dict[str, float]:
        rates = {"global_step/sec": steps / seconds}
        if self._batch_size:
            rates["examples/sec"] = steps * self._batch_size / seconds
        return rates

    def _log_briefly(self, told: dict[str, float], steps: int, seconds: float) -> None:
        """Logs a line, or delays it until the next one or the end."""
        steps, seconds = (
            self._since_told[0] + steps,
            self._since_told[1] + seconds,
        )
        self._since_told = steps, seconds
        self._untold = told | self._rates(steps, seconds)
        now = self._clock()
        if now >= self._told_at + _BRIEF_SECS:
            _logger.info(_line(self._untold))
            self._told_at, self._untold = now, {}
            self._since_told = 0, 0.0


def _line(numbers: dict[str, float]) -> str:
    return ", ".join(
        f"{name} = {number}" if isinstance(number, int) else f"{name} = {number:.6g}"
        for name, number in numbers.items()
    )
