"""Batch normalization with TensorFlow's moving variance."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_tpu_estimator.base.mesh.replica_context import replica_context

_are_together: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "are_together", default=False
)


@contextlib.contextmanager
def over_replicas(are_together: bool) -> Iterator[None]:
    """Says in a `with` block whether layers normalize over all replicas together."""
    token = _are_together.set(are_together)
    try:
        yield
    finally:
        _are_together.reset(token)


@keras.saving.register_keras_serializable("keras_tpu_estimator")
class BatchNormalization(keras.layers.BatchNormalization):
    """Batch normalization with TensorFlow's moving variance.

    The counterpart of `tf.layers.BatchNormalization`. For images, TensorFlow fuses it
    into one operation, which multiplies the variance of a batch by `n / (n - 1)` before
    it enters the moving variance, with `n` values of a channel.
    `keras.layers.BatchNormalization` does not. Outputs in training are equal.

    Args:
        *args: Those of `keras.layers.BatchNormalization`.
        fused: Whether the moving variance gets this factor. Defaults to `None`, for
            inputs of rank 4 whose channels are the axis 1 or 3.
        **kwargs: Those of `keras.layers.BatchNormalization`.

    Example:

    >>> import keras
    >>> import keras_tpu_estimator as kte
    >>> layer = kte.BatchNormalization(momentum=0.5)
    >>> images = keras.ops.reshape(keras.ops.array([1.0, 3.0]), (2, 1, 1, 1))
    >>> outputs = layer(images, training=True)
    >>> layer.moving_variance.numpy().tolist()  # Half of 1, and half of 2.
    [1.5]
    """

    def __init__(self, *args: Any, fused: bool | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.fused = fused

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Normalizes a batch, and moves the averages in training."""
        before = ops.convert_to_tensor(self.moving_variance)
        outputs = super().call(inputs, training=training, mask=mask)
        if training and self.trainable and self._is_fused(len(inputs.shape)):
            count = ops.size(inputs) // inputs.shape[self.axis]
            if _are_together.get():
                count *= replica_context().num_replicas
            decayed = before * self.momentum
            increment = self.moving_variance - decayed
            factor = count / max(count - 1, 1)
            self.moving_variance.assign(decayed + increment * factor)
        return outputs

    def _is_fused(self, rank: int) -> bool:
        if self.fused is None:
            return rank == 4 and self.axis % rank in (1, 3) and not self.renorm
        return self.fused

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        return {**super().get_config(), "fused": self.fused}
