"""Hooks that write summaries and steps per second, and the log lines of training."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator.api.hooks.loop_results import LoopResults
from keras_tpu_estimator.api.hooks.session import Session, check_names
from keras_tpu_estimator.api.hooks.session_run_hook import (
    LoopHook,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from keras_tpu_estimator.api.hooks.timer import SecondOrStepTimer
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.files.summary import collecting
from keras_tpu_estimator.files.summary.event_writer import EventWriter
from keras_tpu_estimator.files.summary.metric_writer import SeveralWriters


class SummarySaverHook(LoopHook):
    """A hook that writes numbers after the first run, then periodically.

    The counterpart of `tf.compat.v1.train.SummarySaverHook`, for values that
    have a name.

    Args:
        save_steps: Steps between summaries. Defaults to `None`.
        save_secs: Seconds between summaries. Defaults to `None`.
        output_dir: The directory of the event file. Defaults to `None`.
        summary_writer: An `EventWriter`, in place of `output_dir`. Defaults
            to `None`.
        summary_op: Names of numbers, or a dict from tags to names. Defaults to
            `"loss"`.
        scaffold: Accepted; has no effect.

    Raises:
        ValueError: Not exactly one interval is given; or both `scaffold` and
            `summary_op`; or neither `output_dir` nor `summary_writer`.
        TypeError: `summary_op` does not consist of names, or `summary_writer`
            is not an `EventWriter`.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> hook = kte.hooks.SummarySaverHook(
    ...     save_steps=100, output_dir=tempfile.mkdtemp(),
    ...     summary_op={"bias of the last layer": "dense/bias"})
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: PathLike | None = None,
        summary_writer: EventWriter | None = None,
        scaffold: Any = None,
        summary_op: Mapping[str, str] | Sequence[str] | str | None = None,
    ):
        if scaffold is not None and summary_op is not None:
            raise ValueError(
                "Only one of `scaffold` and `summary_op` can be set. Received both: "
                f"{scaffold!r} and {summary_op!r}. Omit `scaffold`."
            )
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._names = _by_tag("loss" if summary_op is None else summary_op)
        # The step at which a run will end is unknown before it.
        self.session_fetches = self._names
        writer = writer_of(output_dir, summary_writer)
        if writer is None:
            raise ValueError(
                "`output_dir` or `summary_writer` must be set. Received neither. "
                "Pass the directory of the event file, such as "
                "estimator.model_dir."
            )
        self._writer = writer

    def due_steps(self, start: int) -> Iterable[int]:
        """Returns the steps after which it writes, if it counts steps."""
        return self._timer.steps_from(start + 1)

    def begin(self) -> None:
        """Resets the interval."""
        self._timer.reset()

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Writes if the interval has passed."""
        del run_values
        session = run_context.session
        step = session.results.step
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            self._writer.scalars(session.run(self._names), step)


def _by_tag(names: Any) -> dict[str, str]:
    check_names("summary_op", names)
    if isinstance(names, Mapping):
        return dict(names)
    return {n: n for n in ([names] if isinstance(names, str) else names)}


class RecordedSummariesHook(LoopHook):
    """A hook that periodically writes the summaries that `model_fn` recorded in the
    last step, and the `loss`, unless one has that name.

    They are copied off the devices only when they are written, and the first run is
    always written. With `only_losses`, for a `model_fn` that records nothing, runs may
    end at any step, and the losses of all their steps are available.
    """

    def __init__(
        self,
        writer: SeveralWriters,
        save_steps: int,
        only_losses: bool = False,
    ):
        self._writer = writer
        self._save_steps = save_steps
        self._timer = SecondOrStepTimer(every_steps=save_steps)
        self._only_losses = only_losses
        self._next_loss = 0

    def due_steps(self, start: int) -> Iterable[int]:
        """Returns the steps whose summaries it writes, except losses."""
        if self._only_losses:
            return ()
        return self._timer.steps_from(start + 1)

    def run_completed(self, session: Session) -> None:
        """Writes if the interval has passed."""
        results = session.results
        step = results.step
        if self._only_losses:
            if self._next_loss <= step:
                self._write_losses(results.losses_of_steps, step)
            return
        if not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        if not any(
            recorded.summary.tag == "loss" and recorded.events is None
            for recorded in results.summaries
        ):
            self._writer.write_loss(step, float(results.loss))
        collecting.write(results.summaries, self._writer, step)

    def _write_losses(self, losses: np.ndarray, last: int) -> None:
        """Writes the losses that are due in a run whose last step is given."""
        first = last - len(losses) + 1
        self._next_loss = max(self._next_loss, first)
        while self._next_loss <= last:
            loss = float(losses[self._next_loss - first])
            self._writer.write_loss(self._next_loss, loss)
            self._next_loss += self._save_steps


def writer_of(output_dir: PathLike | None, summary_writer: Any) -> EventWriter | None:
    """Returns a hook's `summary_writer`, or the writer of its directory."""
    if summary_writer is None:
        return EventWriter.for_dir(output_dir) if output_dir else None
    if not isinstance(summary_writer, EventWriter):
        raise TypeError(
            "`summary_writer` must be a "
            "keras_tpu_estimator.summary.EventWriter. Received: "
            f"{shown(summary_writer)}. Pass `output_dir` instead, which "
            "creates one."
        )
    return summary_writer


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

    def due_steps(self, start: int) -> Iterable[int]:
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
        step = run_context.session.results.step
        if self._timer.should_trigger_for_step(step):
            ago = run_context.session.seconds_since_run()
            self._end_interval(step, ago)
        self._warn_if_not_increased(step)

    def _end_interval(self, step: int, seconds_ago: float) -> None:
        """Logs the interval up to the completion of a step, if one is open."""
        seconds, steps = self._timer.update_last_triggered_step(step, seconds_ago)
        if steps and seconds:
            self._log_and_record(steps, seconds, step)

    def _log_and_record(
        self, elapsed_steps: int, elapsed_time: float, global_step: int
    ) -> None:
        """Logs and writes the rate of an interval of `elapsed_time` seconds that ends
        at a global step.
        """
        rates = {"global_step/sec": elapsed_steps / elapsed_time}
        self._log(rates)
        if self._writer is not None:
            self._writer.scalars(rates, global_step)

    def _log(self, rates: dict[str, float]) -> None:
        for name, rate in rates.items():
            _logger.info("%s: %.6g", name, rate)

    def _warn_if_not_increased(self, step: int) -> None:
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
    """A hook that writes the loss, rates and other metrics of the loop to the log and
    to metric writers.

    The first interval begins with the session, and the last one ends with it, so that
    even a short training has a log line. In a notebook the log has a line about once a
    second; writers receive all metrics.
    """

    def __init__(
        self,
        batch_size: int | None,
        report: Callable[[LoopResults], dict[str, float]],
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

    def due_steps(self, start: int) -> Iterable[int]:
        """Returns the steps after which it logs, if it counts steps."""
        return self._timer.steps_from(start)

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Starts the interval."""
        del coord
        self._session = session
        self._timer.update_last_triggered_step(session.results.step)
        self._report(session.results)
        self._logged_at = -math.inf
        self._unlogged: dict[str, float] = {}
        self._since_log = 0, 0.0

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Does nothing, because `run_completed` logs."""

    def run_completed(self, session: Session) -> None:
        """Logs if the interval has passed."""
        step = session.results.step
        if self._timer.should_trigger_for_step(step):
            self._end_interval(step, session.seconds_since_run())

    def close(self, session: Session) -> None:
        """Logs the steps since the last line, if any, before the last checkpoint, whose
        time does not count.
        """
        self._end_interval(session.results.step, session.seconds_since_run())
        if self._unlogged:
            _logger.info(_line(self._unlogged))

    def _log_and_record(
        self, elapsed_steps: int, elapsed_time: float, global_step: int
    ) -> None:
        results = self._session.results
        loss = float(results.loss)
        numbers = self._report(results)
        rates = self._rates(elapsed_steps, elapsed_time)
        logged = {"loss": loss, "step": global_step} | numbers
        if self._is_brief:
            self._log_briefly(logged, elapsed_steps, elapsed_time)
        else:
            _logger.info(_line(logged))
            self._log(rates)
        if self._reports is not None:
            self._reports.write_report(global_step, {"loss": loss} | numbers | rates)

    def _rates(self, steps: int, seconds: float) -> dict[str, float]:
        rates = {"global_step/sec": steps / seconds}
        if self._batch_size:
            rates["examples/sec"] = steps * self._batch_size / seconds
        return rates

    def _log_briefly(
        self, logged: dict[str, float], steps: int, seconds: float
    ) -> None:
        """Logs a line, or delays it until the next one or the end."""
        steps, seconds = (
            self._since_log[0] + steps,
            self._since_log[1] + seconds,
        )
        self._since_log = steps, seconds
        self._unlogged = logged | self._rates(steps, seconds)
        now = self._clock()
        if now >= self._logged_at + _BRIEF_SECS:
            _logger.info(_line(self._unlogged))
            self._logged_at, self._unlogged = now, {}
            self._since_log = 0, 0.0


def _line(numbers: dict[str, float]) -> str:
    return ", ".join(
        f"{name} = {number}" if isinstance(number, int) else f"{name} = {number:.6g}"
        for name, number in numbers.items()
    )
