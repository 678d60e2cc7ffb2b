"""Stopping at a step, on all hosts."""

from typing import Any

from keras_tpu_estimator.spec.hooks.stop_at_step import StopAtStepHook


def make_stop_at_checkpoint_step_hook(
    estimator: Any, last_step: int, wait_after_file_check_secs: float = 30
) -> StopAtStepHook:
    """Makes a hook by which all processes stop at the same step.

    As they make each step together, none waits for another's checkpoint. The
    counterpart of
    `tf.estimator.experimental.make_stop_at_checkpoint_step_hook`.

    Args:
        estimator: Accepted for compatibility.
        last_step: The global step to stop at.
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
