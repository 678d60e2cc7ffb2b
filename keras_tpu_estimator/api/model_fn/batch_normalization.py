"""Batch normalization with TensorFlow's moving variance."""

from typing import Any

import keras
from keras import ops

# The ranks of images and volumes, whose operation TensorFlow fuses.
_FUSED_RANKS = (4, 5)


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
            inputs of rank 4 and 5.
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
        rank = len(inputs.shape)
        is_fused = rank in _FUSED_RANKS if self.fused is None else self.fused
        if training and self.trainable and is_fused:
            count = ops.size(inputs) // inputs.shape[self.axis]
            stayed = before * self.momentum
            added = self.moving_variance - stayed
            self.moving_variance.assign(stayed + added * (count / max(count - 1, 1)))
        return outputs

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        return {**super().get_config(), "fused": self.fused}
