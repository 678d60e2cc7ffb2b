"""Hooks of the original that have no purpose here, so that old scripts run or explain
themselves.
"""

import logging
from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.api.hooks.session import Session, refuse_feed
from keras_tpu_estimator.api.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.api.hooks.stopping import StopAtStepHook

_logger = logging.getLogger("keras_tpu_estimator")


class FeedFnHook(SessionRunHook):
    """A hook of the original that explains the alternative to feeding.

    A device loop is one compiled program, which reads only the batches of
    `input_fn`. This name exists so that old scripts fail with an explanation:
    add the value to the features of each batch in `input_fn`.

    Args:
        feed_fn: The function that returned the values to feed.

    Raises:
        ValueError: Always.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.hooks.FeedFnHook(lambda: {"rate": 0.1})
    Traceback (most recent call last):
        ...
    ValueError: `feed_fn` must be None. Received: ...

    Reference: `tf.compat.v1.train.FeedFnHook`.
    """

    def __init__(self, feed_fn: Callable[[], Any] | None):
        refuse_feed("feed_fn", feed_fn or "nothing")


class GlobalStepWaiterHook(SessionRunHook):
    """A hook that starts at once, and warns if it should have waited.

    In the original, workers start one after the other while others train. Here
    all processes make every step together, so that waiting for a step would
    never end. The counterpart of `tf.compat.v1.train.GlobalStepWaiterHook`.

    Args:
        wait_until_step: The global step to wait for.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> hook = kte.hooks.GlobalStepWaiterHook(wait_until_step=0)
    """

    def __init__(self, wait_until_step: int):
        self._wait_until_step = wait_until_step

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Warns if the step has not been reached."""
        del coord
        step = int(session.run("global_step"))
        if step < self._wait_until_step:
            _logger.warning(
                "GlobalStepWaiterHook does not wait for global step %d: all "
                "processes make each step together. Starting at step %d.",
                self._wait_until_step,
                step,
            )


def make_stop_at_checkpoint_step_hook(
    estimator: Any, last_step: int, wait_after_file_check_secs: float = 30
) -> StopAtStepHook:
    """Returns a hook that stops all processes at the same step.

    Processes make each step together, so none waits for another's checkpoint.
    The counterpart of
    `tf.estimator.experimental.make_stop_at_checkpoint_step_hook`.

    Args:
        last_step: The global step to stop at.
        estimator: Accepted for compatibility.
        wait_after_file_check_secs: Accepted for compatibility. Defaults to 30.

    Returns:
        A hook for `train`.

    Raises:
        ValueError: `last_step` is `None`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> estimator = kte.TPUEstimator(
    ...     lambda features, mode, params: None,
    ...     config=kte.RunConfig(), train_batch_size=8)
    >>> hook = kte.hooks.make_stop_at_checkpoint_step_hook(estimator, 1000)
    >>> isinstance(hook, kte.hooks.StopAtStepHook)
    True
    """
    del estimator, wait_after_file_check_secs
    return StopAtStepHook(last_step=last_step)
