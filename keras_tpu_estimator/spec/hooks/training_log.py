"""What training reports without being asked to."""

import logging
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from keras_tpu_estimator.spec.hooks.metrics_file import MetricsFile
from keras_tpu_estimator.spec.hooks.session import Session
from keras_tpu_estimator.spec.hooks.session_run_hook import LoopHook
from keras_tpu_estimator.spec.hooks.session_run_hook import SessionRunContext
from keras_tpu_estimator.spec.hooks.session_run_hook import SessionRunValues
from keras_tpu_estimator.spec.hooks.step_counter import StepCounterHook

_logger = logging.getLogger("keras_tpu_estimator")


class TrainingLogHook(StepCounterHook, LoopHook):
    """Reports the loss, rates, and what else the loop has to tell.

    They go into the log, and, where there is a directory, into its event file
    and `metrics.jsonl`. The first interval begins with the session, and the
    last one ends with it, so that even a short training has a report.

    Args:
        batch_size: Examples in a step, or `None` if that is not known.
        report: Returns other numbers of the interval by name.
        directory: Where files are written, or `None` for nowhere.
        **intervals: As in `StepCounterHook`.
    """

    allows_run_ahead = True

    def __init__(
        self,
        batch_size: int | None,
        report: Callable[[], dict[str, float]],
        directory: str | None,
        **intervals: Any,
    ):
        super().__init__(output_dir=directory, **intervals)
        self._batch_size = batch_size
        self._report = report
        self._file = None if directory is None else MetricsFile(directory)

    def run_ends(self, start: int) -> Iterable[int]:
        """Those after which it reports, if it counts steps."""
        return self._timer.steps_from(start)

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Starts to count."""
        del coord
        self._session = session
        self._timer.update_last_triggered_step(int(session.run("global_step")))
        self._report()

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Leaves it to `run_is_made`."""

    def run_is_made(self, session: Session) -> None:
        """Reports if it is time."""
        step = int(session.run("global_step"))
        if self._timer.should_trigger_for_step(step):
            self._end_interval(step)

    def close(self, session: Session) -> None:
        """Reports the steps since the last report, if there are any.

        Before the last checkpoint, which is no part of their time.
        """
        self._end_interval(int(session.run("global_step")))

    def _log_and_record(
        self, elapsed_steps: int, elapsed_time: float, global_step: int
    ) -> None:
        loss = float(self._session.run("loss"))
        numbers = self._report()
        told = [f"loss = {loss:.6g}", f"step = {global_step}"]
        told += [f"{name} = {number:.6g}" for name, number in numbers.items()]
        _logger.info(", ".join(told))
        rates = {"global_step/sec": elapsed_steps / elapsed_time}
        if self._batch_size:
            examples = elapsed_steps * self._batch_size
            rates["examples/sec"] = examples / elapsed_time
        self._log(rates)
        if self._writer is not None:
            self._writer.scalars(rates | numbers, global_step)
        if self._file is not None:
            self._file.write(global_step, {"loss": loss} | numbers | rates)
