"""Clipping of gradients by their common norm."""

from collections.abc import Sequence
from typing import Any

import jax
import keras
from keras import ops

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import TensorLike


def clip_by_global_norm(
    t_list: Sequence[TensorLike | None],
    clip_norm: TensorLike,
    use_norm: Any = None,
    name: str | None = None,
) -> tuple[list[jax.Array | None], jax.Array]:
    """Scales tensors down to a common norm of at most `clip_norm`.

    The counterpart of `tf.clip_by_global_norm`, for a `model_fn` that processes
    gradients itself. It sees the tensors of this replica: the results of
    `compute_gradients` are its shares, and each replica clips its own. To clip
    the gradient of the entire batch, use `global_clipnorm`, an argument of all
    Keras optimizers.

    Args:
        t_list: Sequence of tensors; `None` elements stay.
        clip_norm: The largest norm, a positive number or scalar tensor.
        use_norm: The norm, if it is known. Defaults to `None`: the square root
            of the sum of all squares, at least in float32.
        name: Accepted for compatibility. Defaults to `None`.

    Returns:
        The list of clipped tensors, NaN if the norm is not finite; and the norm
        before clipping, a scalar tensor.

    Raises:
        TypeError: `t_list` is a single tensor.
        ValueError: `t_list` has no tensor, and `use_norm` is not given.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> clipped, norm = kte.clip_by_global_norm([3.0, None, 4.0], 1.0)
    >>> [None if x is None else round(float(x), 3) for x in clipped]
    [0.6, None, 0.8]
    >>> float(norm)
    5.0
    """
    del name
    if not isinstance(t_list, list | tuple):
        raise TypeError(
            "`t_list` must be a list or tuple of tensors. Received: "
            f"{shown(t_list)}. Put a single tensor into a list."
        )
    tensors = [t if t is None else ops.convert_to_tensor(t) for t in t_list]
    norm = _global_norm(tensors) if use_norm is None else use_norm
    scale = ops.where(
        ops.isfinite(norm),
        clip_norm / ops.maximum(norm, clip_norm),
        float("nan"),
    )
    clipped = [t if t is None else t * ops.cast(scale, t.dtype) for t in tensors]
    return clipped, norm


def _global_norm(tensors: Sequence[jax.Array | None]) -> jax.Array:
    squares = [
        ops.sum(ops.square(ops.cast(t, _accurate(t.dtype))))
        for t in tensors
        if t is not None
    ]
    if not squares:
        raise ValueError(
            "`t_list` must have at least one tensor. Received none: check "
            "that the loss depends on the variables."
        )
    return ops.sqrt(sum(squares))


def _accurate(dtype: jax.typing.DTypeLike) -> str:
    return keras.backend.result_type(dtype, "float32")
