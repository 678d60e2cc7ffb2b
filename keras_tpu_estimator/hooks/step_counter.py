"""Logging how fast training goes, and how the loss falls."""

import logging
from typing import Any

from keras_tpu_estimator.hooks.session_run_hook import Session
from keras_tpu_estimator.hooks.session_run_hook import SessionRunContext
from keras_tpu_estimator.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.hooks.session_run_hook import SessionRunValues
from keras_tpu_estimator.hooks.timer import SecondOrStepTimer
from keras_tpu_estimator.summary import EventWriter

_logger = logging.getLogger("keras_tpu_estimator")


class StepCounterHook(SessionRunHook):
    """Logs the loss, steps per second and examples per second.

    The rates go into the event file, too, as `global_step/sec` and
    `examples/sec`.

    Args:
        every_steps: Steps between log lines, or `None`.
        every_secs: Seconds between log lines, or `None`.
        batch_size: Examples in a step, or `None` if that is not known.
        writer: Where the rates are written, or `None`.
    """

    def __init__(
        self,
        every_steps: int | None,
        every_secs: float | None = None,
        batch_size: int | None = None,
        writer: EventWriter | None = None,
    ):
        self._timer = SecondOrStepTimer(every_secs, every_steps)
        self._batch_size = batch_size
        self._writer = writer

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Starts to count."""
        del coord
        self._timer.update_last_triggered_step(int(session.run("global_step")))

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Logs if it is time."""
        del run_values
        session = run_context.session
        step = int(session.run("global_step"))
        if not self._timer.should_trigger_for_step(step):
            return
        steps, seconds = self._timer.elapsed_since_last(step) or (0, 0.0)
        self._timer.update_last_triggered_step(step)
        _logger.info("loss = %.6g, step = %d", session.run("loss"), step)
        if not steps or not seconds:
            return
        rates = {"global_step/sec": steps / seconds}
        if self._batch_size:
            rates["examples/sec"] = steps * self._batch_size / seconds
        for name, rate in rates.items():
            _logger.info("%s: %.6g", name, rate)
        if self._writer is not None:
            self._writer.scalars(rates, step)
