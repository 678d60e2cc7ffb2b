"""The counterpart of `tf.contrib.learn.monitors`."""

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.spec.hooks.session_run_hook import SessionRunHook


def replace_monitors_with_hooks(
    monitors_or_hooks: Sequence[Any] | None, estimator: Any
) -> list[Any]:
    """Returns hooks, because there are no monitors to replace.

    Args:
        monitors_or_hooks: Hooks of TensorFlow or of this package, or `None`.
        estimator: The estimator that will use them.

    Raises:
        TypeError: A value is not a hook.
    """
    del estimator
    hooks = list(monitors_or_hooks or [])
    kinds = (tf.train.SessionRunHook, SessionRunHook)
    for each in hooks:
        if not isinstance(each, kinds):
            raise TypeError(
                "`monitors_or_hooks` must be hooks. Received: "
                f"{each!r} of type {type(each).__name__}. Write the monitor "
                "as a tf.train.SessionRunHook."
            )
    return hooks
