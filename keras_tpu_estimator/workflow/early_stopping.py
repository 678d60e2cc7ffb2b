"""A hook that ends training when a function returns true.

It has no state in the model, so it can be added to a training that has
checkpoints.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from keras_tpu_estimator.api.hooks.session_run_hook import (
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from keras_tpu_estimator.api.hooks.timer import SecondOrStepTimer
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.estimator.tpu_estimator import TPUEstimator
from keras_tpu_estimator.workflow.specs import check_estimator

_logger = logging.getLogger("keras_tpu_estimator")


class EarlyStoppingHook(SessionRunHook):
    """A hook that ends training when a function returns true.

    Args:
        should_stop_fn: Called without arguments; returns whether to end
            training.
    """

    allows_run_ahead = True
    # The function reads results of evaluations, which saving a checkpoint may
    # start.
    acts_last = True

    def __init__(self, should_stop_fn: Callable[[], bool], timer: SecondOrStepTimer):
        self._should_stop_fn = should_stop_fn
        self._timer = timer

    def run_ends(self, start: int) -> Iterable[int]:
        """Returns the steps after which it calls the function, if it counts
        steps.
        """
        return self._timer.steps_from(start + 1)

    def begin(self) -> None:
        """Resets the interval, so that the first run counts."""
        self._timer.reset()

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Calls the function if the interval has passed."""
        del run_values
        step = _global_step(run_context.session)
        if not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        if self._should_stop_fn():
            _logger.info("Early stopping at step %d.", step)
            run_context.request_stop()


def _global_step(session: Any) -> int:
    """Returns the global step, also from a `tf.train.MonitoredSession`."""
    step = session.run("global_step")
    if step is None:  # In such a session the name refers to an operation.
        import tensorflow as tf

        variable = tf.compat.v1.train.get_global_step(session.graph)
        step = session.run(variable)
    return int(step)


def make_early_stopping_hook(
    estimator: TPUEstimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """Returns a hook that ends training when a function returns true.

    The counterpart of `tf.estimator.experimental.make_early_stopping_hook`.

    Args:
        estimator: The `TPUEstimator` that trains.
        should_stop_fn: Function without arguments that returns whether to stop.
            It is called after the first run of the device loop, and then
            periodically.
        run_every_secs: Seconds between its calls. Defaults to 60.
        run_every_steps: Steps between its calls, if `run_every_secs` is `None`.
            Defaults to `None`.

    Returns:
        A hook for `train` or `TrainSpec`. If it stops one process, all stop.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: Not exactly one interval is given.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import os
    >>> estimator = kte.TPUEstimator(
    ...     lambda features, labels, mode, params: None,
    ...     config=kte.RunConfig(), train_batch_size=8)
    >>> hook = kte.experimental.make_early_stopping_hook(
    ...     estimator, lambda: os.path.exists("/run/stop"))
    """
    check_estimator(estimator)
    if not callable(should_stop_fn):
        raise TypeError(
            "`should_stop_fn` must be a function. Received: "
            f"{shown(should_stop_fn)}. Pass one without arguments that "
            "returns True to stop."
        )
    if (run_every_secs is None) == (run_every_steps is None):
        raise ValueError(
            "Exactly one of `run_every_secs` and `run_every_steps` must be "
            f"given. Received: {run_every_secs} and {run_every_steps}. Pass "
            "run_every_secs=None to count steps."
        )
    timer = SecondOrStepTimer(run_every_secs, run_every_steps)
    return EarlyStoppingHook(should_stop_fn, timer)
