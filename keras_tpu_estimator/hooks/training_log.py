"""What training logs without being asked to."""

import logging
from typing import Any

from keras_tpu_estimator.hooks.session_run_hook import Session
from keras_tpu_estimator.hooks.step_counter import StepCounterHook

_logger = logging.getLogger("keras_tpu_estimator")


class TrainingLogHook(StepCounterHook):
    """Logs the loss, steps per second and examples per second.

    The rates go into the event file, too. The first interval begins with the
    session, so that even a short training has a log line.

    Args:
        batch_size: Examples in a step, or `None` if that is not known.
        **intervals: As in `StepCounterHook`.
    """

    def __init__(self, batch_size: int | None, **intervals: Any):
        super().__init__(**intervals)
        self._batch_size = batch_size

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Starts to count."""
        del coord
        self._session = session
        self._timer.update_last_triggered_step(int(session.run("global_step")))

    def _log_and_record(
        self, elapsed_steps: int, elapsed_time: float, global_step: int
    ) -> None:
        _logger.info(
            "loss = %.6g, step = %d", self._session.run("loss"), global_step
        )
        rates = {"global_step/sec": elapsed_steps / elapsed_time}
        if self._batch_size:
            examples = elapsed_steps * self._batch_size
            rates["examples/sec"] = examples / elapsed_time
        self._record(rates, global_step)
