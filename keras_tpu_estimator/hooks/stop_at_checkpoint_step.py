"""Stopping at a step, once a checkpoint of it has been written."""

import logging
import time
from collections.abc import Callable
from typing import Any

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.base.types import PathLike
from keras_tpu_estimator.hooks.session_run_hook import SessionRunContext
from keras_tpu_estimator.hooks.session_run_hook import SessionRunValues
from keras_tpu_estimator.hooks.stop_at_step import StopAtStepHook

_logger = logging.getLogger("keras_tpu_estimator")


class StopAtCheckpointStepHook(StopAtStepHook):
    """Stops at a step, and lets another process save it first.

    Args:
        model_dir: Where the other process saves.
        last_step: The global step to stop at.
        wait_after_file_check_secs: Seconds between looks at the directory.
            Defaults to 30.
        sleep: Waits for so many seconds. Defaults to `time.sleep`.

    Raises:
        ValueError: There is no step, or no directory.
    """

    def __init__(
        self,
        model_dir: PathLike,
        last_step: int,
        wait_after_file_check_secs: float = 30,
        sleep: Callable[[float], None] = time.sleep,
    ):
        for name, value in (("model_dir", model_dir), ("last_step", last_step)):
            if value is None:
                raise ValueError(
                    f"`{name}` must be given. Received: None. Pass where, and "
                    "at which global step, to stop."
                )
        super().__init__(last_step=last_step)
        self._model_dir = model_dir
        self._wait_secs = wait_after_file_check_secs
        self._sleep = sleep

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Stops if it is time, after a checkpoint is there."""
        super().after_run(run_context, run_values)
        if run_context.stop_requested:
            self._wait_for_checkpoint()

    def _wait_for_checkpoint(self) -> None:
        wanted = self.stop_from(0)
        while True:
            latest = checkpoints.latest(self._model_dir)
            if latest and checkpoints.step_of(latest) >= wanted:
                return
            _logger.info(
                "Waiting for a checkpoint of step %d in %s; the latest is %s.",
                wanted,
                self._model_dir,
                latest,
            )
            self._sleep(self._wait_secs)


def make_stop_at_checkpoint_step_hook(
    estimator: Any, last_step: int, wait_after_file_check_secs: float = 30
) -> StopAtStepHook:
    """Makes a hook by which all processes stop at the same step.

    The chief stops by itself and saves its last checkpoint; every other
    process stops when that checkpoint is there. The counterpart of
    `tf.estimator.experimental.make_stop_at_checkpoint_step_hook`.

    Args:
        estimator: The `TPUEstimator` that trains.
        last_step: The global step to stop at.
        wait_after_file_check_secs: Seconds between looks for the checkpoint.
            Defaults to 30.

    Returns:
        A hook for `train`.

    Raises:
        ValueError: There is no step.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> estimator = kte.TPUEstimator(
    ...     lambda features, mode, params: None,
    ...     config=kte.RunConfig(), train_batch_size=8)
    >>> hook = kte.hooks.make_stop_at_checkpoint_step_hook(estimator, 1000)
    >>> isinstance(hook, kte.hooks.StopAtStepHook)
    True
    """
    if estimator.config.is_chief:
        return StopAtStepHook(last_step=last_step)
    return StopAtCheckpointStepHook(
        estimator.model_dir, last_step, wait_after_file_check_secs
    )
