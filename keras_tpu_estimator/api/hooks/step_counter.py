"""Hooks that measure steps per second, and the log lines of training."""

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import (
    LoopHook,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from keras_tpu_estimator.api.hooks.summary_saver import writer_of
from keras_tpu_estimator.api.hooks.timer import SecondOrStepTimer
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.files.summary.event_writer import EventWriter
from keras_tpu_estimator.files.summary.metric_writer import SeveralWriters

_logger = logging.getLogger("keras_tpu_estimator")
_MAX_WARNINGS = 5


class StepCounterHook(SessionRunHook):
    """A hook that logs steps per second, and writes `global_step/sec`.

    The first interval begins at the end of the first run, which excludes
    compilation. A subclass may override `_log_and_record`. The counterpart of
    `tf.compat.v1.train.StepCounterHook`.

    Args:
        every_n_steps: Steps between log lines. Defaults to 100; must be `None`
            with `every_n_secs`.
        every_n_secs: Seconds between log lines. Defaults to `None`.
        output_dir: The directory of the event file. Defaults to `None`: the
            rate is only logged.
        summary_writer: An `EventWriter`, in place of `output_dir`. Defaults
            to `None`.

    Raises:
        ValueError: Not exactly one interval is given.
        TypeError: `summary_writer` is not an `EventWriter`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> hook = kte.hooks.StepCounterHook(every_n_steps=None, every_n_secs=30)
    """

    allows_run_ahead = True

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: PathLike | None = None,
        summary_writer: EventWriter | None = None,
    ):
        if (every_n_steps is None) == (every_n_secs is None):
            raise ValueError(
                "Exactly one of `every_n_steps` and `every_n_secs` must be "
                f"given. Received: every_n_steps={every_n_steps}, "
                f"every_n_secs={every_n_secs}. For seconds pass "
                "every_n_steps=None as well."
            )
        self._timer = SecondOrStepTimer(every_n_secs, every_n_steps)
        self._writer = writer_of(output_dir, summary_writer)

    def run_ends(self, start: int) -> Iterable[int]:
        """Returns the steps after which it logs, if it counts steps."""
        return self._timer.steps_from(start + 1)

    def begin(self) -> None:
        """Resets the interval."""
        self._timer.reset()
        self._last_step: int | None = None
        self._warnings = 0

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Logs if the interval has passed."""
        del run_values
        step = int(run_context.session.run("global_step"))
        if self._timer.should_trigger_for_step(step):
            ago = run_context.session.seconds_since_run()
            self._end_interval(step, ago)
        self._warn_if_standing(step)

    def _end_interval(self, step: int, seconds_ago: float) -> None:
        """Logs the interval up to the completion of a step, if one is open."""
        seconds, steps = self._timer.update_last_triggered_step(step, seconds_ago)
        if steps and seconds:
            self._log_and_record(steps, seconds, step)

    def _log_and_record(
        self, elapsed_steps: int, elapsed_time: float, global_step: int
    ) -> None:
        """Logs the rate of an interval, and writes it.

        Args:
            elapsed_steps: Steps in the interval.
            elapsed_time: Length of the interval in seconds.
            global_step: The last step of the interval.
        """
        rates = {"global_step/sec": elapsed_steps / elapsed_time}
        self._log(rates)
        if self._writer is not None:
            self._writer.scalars(rates, global_step)

    def _log(self, rates: dict[str, float]) -> None:
        for name, rate in rates.items():
            _logger.info("%s: %.6g", name, rate)

    def _warn_if_standing(self, step: int) -> None:
        if step == self._last_step and self._warnings < _MAX_WARNINGS:
            self._warnings += 1
            _logger.warning(
                "The global step has not increased: it is %d, as after the "
                "previous run. Steps per second are counted in training only.",
                step,
            )
        self._last_step = step


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
