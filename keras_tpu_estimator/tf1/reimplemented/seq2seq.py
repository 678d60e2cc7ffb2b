"""The loss of `tf.contrib.seq2seq`."""

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """Returns the weighted cross entropy of sequences.

    Args:
        logits: `[batch, time, classes]`.
        targets: Integers of `[batch, time]`.
        weights: `[batch, time]`.
        average_across_timesteps: Whether to take the mean over time.
        average_across_batch: Whether to take the mean over examples.
        softmax_loss_function: A function of `labels` and `logits`. Defaults to the
            sparse softmax cross entropy.
        name: The name of the operation.

    Returns:
        A scalar. Without one of the means, `[batch]` or `[time]`, and without both,
        `[batch, time]`.
    """
    function = softmax_loss_function
    if function is None:
        function = tf.nn.sparse_softmax_cross_entropy_with_logits
    with tf.name_scope(name, "sequence_loss"):
        losses = function(labels=targets, logits=logits) * weights
        axes = [0] * average_across_batch + [1] * average_across_timesteps
        if not axes:
            return losses
        total = tf.reduce_sum(weights, axes) + 1e-12
        return tf.reduce_sum(losses, axes) / total
