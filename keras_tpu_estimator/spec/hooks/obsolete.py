"""Hooks that programs still name, and that have nothing left to do."""

import logging
from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.spec.hooks.fetches import refuse_feed
from keras_tpu_estimator.spec.hooks.session import Session
from keras_tpu_estimator.spec.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.spec.hooks.stop_at_step import StopAtStepHook

_logger = logging.getLogger("keras_tpu_estimator")


class FeedFnHook(SessionRunHook):
    """Says, when it is made, what to do instead of feeding.

    A device loop is compiled as a whole, and takes what `input_fn` yields. The
    name is here so that old programs fail with an explanation. What such a
    hook did, `input_fn` can do: add the value to the features of each batch.

    Args:
        feed_fn: The function that returned what to feed.

    Raises:
        ValueError: Always.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.hooks.FeedFnHook(lambda: {"rate": 0.1})
    Traceback (most recent call last):
        ...
    ValueError: `feed_fn` should be None. Received: ...

    Reference: `tf.compat.v1.train.FeedFnHook`.
    """

    def __init__(self, feed_fn: Callable[[], Any] | None):
        refuse_feed("feed_fn", feed_fn or "nothing")


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


def make_stop_at_checkpoint_step_hook(
    estimator: Any, last_step: int, wait_after_file_check_secs: float = 30
) -> StopAtStepHook:
    """Makes a hook by which all processes stop at the same step.

    As they make each step together, none waits for another's checkpoint. The
    counterpart of
    `tf.estimator.experimental.make_stop_at_checkpoint_step_hook`.

    Args:
        last_step: The global step to stop at.
        estimator: Accepted for compatibility.
        wait_after_file_check_secs: Accepted for compatibility. Defaults to 30.

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
    del estimator, wait_after_file_check_secs
    return StopAtStepHook(last_step=last_step)
