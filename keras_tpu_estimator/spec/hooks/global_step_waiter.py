"""What used to hold workers back until others have made some steps."""

import logging
from typing import Any

from keras_tpu_estimator.spec.hooks.session import Session
from keras_tpu_estimator.spec.hooks.session_run_hook import SessionRunHook

_logger = logging.getLogger("keras_tpu_estimator")


class GlobalStepWaiterHook(SessionRunHook):
    """Starts at once, and says so if it was meant to wait.

    The original let workers start one after the other, while others went on
    counting steps. Here all processes make every step together, so that the
    step would never come, and waiting would never end. The counterpart of
    `tf.compat.v1.train.GlobalStepWaiterHook`.

    Args:
        wait_until_step: The global step to wait for.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> hook = kte.hooks.GlobalStepWaiterHook(wait_until_step=0)
    """

    allows_run_ahead = True

    def __init__(self, wait_until_step: int):
        self._wait_until_step = wait_until_step

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Warns if the step is still to come."""
        del coord
        step = int(session.run("global_step"))
        if step < self._wait_until_step:
            _logger.warning(
                "GlobalStepWaiterHook does not wait for global step %d: all "
                "processes make each step together. Starting at step %d.",
                self._wait_until_step,
                step,
            )
