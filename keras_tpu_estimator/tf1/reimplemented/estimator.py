"""Functions of `tf.estimator` and of `tf.contrib.estimator`."""

from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.files.formats.latest_checkpoints import (
    latest_checkpoint,
)
from keras_tpu_estimator.files.formats.loading import load_variable

_STEP = "global_step"


def global_step_of(checkpoint_dir: str) -> int:
    """Returns the global step of the latest checkpoint of a directory, or 0.

    Args:
        checkpoint_dir: The directory.

    Example:

    >>> global_step_of("/no/such/directory")
    0
    """
    latest = latest_checkpoint(checkpoint_dir)
    if latest is None:
        return 0
    return int(load_variable(latest, _STEP))


def clip_gradients_by_norm(optimizer: Any, clip_norm: Any) -> Any:
    """Returns an optimizer that clips all gradients by their global norm.

    Args:
        optimizer: A `tf.train.Optimizer`.
        clip_norm: The norm.
    """
    return _Clipping(optimizer, clip_norm)


class _Clipping(tf.train.Optimizer):
    def __init__(self, optimizer: Any, clip_norm: Any):
        super().__init__(False, "ClipByNorm" + optimizer.get_name())
        self._optimizer, self._norm = optimizer, clip_norm

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the gradients of the optimizer."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        """Applies clipped gradients."""
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], self._norm)
        return self._optimizer.apply_gradients(
            list(zip(clipped, [v for _, v in pairs], strict=True)),
            global_step,
            name,
        )
