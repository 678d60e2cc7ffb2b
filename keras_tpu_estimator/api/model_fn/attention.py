"""Attention of JAX models, which on a TPU need not store its scores."""

import jax
import jax.numpy as jnp

from keras_tpu_estimator.base.tpu import attention as kernel
from keras_tpu_estimator.base.tpu.attention import Visibility

_RANK = 4


def dot_product_attention(  # noqa: PLR0913 - the arguments of JAX
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    local_window_size: int | tuple[int, int] | None = None,
) -> jax.Array:
    """Returns the attention of queries over keys, for long sequences without scores.

    It has the numbers of `jax.nn.dot_product_attention`, up to rounding. In a
    `model_fn` on a TPU, attentions of at least 1,024 queries and keys use JAX's splash
    attention kernel, whose memory grows with the length instead of its square. It
    cannot add a bias, or use a mask that depends on both the query and the key; such
    calls, and those on other devices, are those of JAX. Keras's layers do the same by
    themselves.

    Args:
        query: Queries of shape `[batch, length, heads, size]` and dtype float32 or
            bfloat16.
        key: Keys of shape `[batch, length, heads, size]`. The number of heads divides
            that of the queries.
        value: Values of the same shape.
        bias: Added to the scores of shape `[batch, heads, queries, keys]`. Defaults
            to none.
        mask: Booleans that are false for scores to omit, of the same shape, in which
            sizes may be 1. `[batch, 1, 1, keys]` hides padding. Defaults to none.
        scale: The factor of the scores. Defaults to 1 / sqrt(size).
        is_causal: Whether queries see no later keys. Defaults to `False`.
        local_window_size: How many earlier and later keys a query sees, as one number
            or two. Defaults to all.

    Returns:
        The attention, of the shape and dtype of the query.

    Raises:
        ValueError: The shapes or dtypes do not match; from JAX.

    Example:

    >>> import jax.numpy as jnp
    >>> import keras_tpu_estimator as kte
    >>> x = jnp.ones((2, 8, 4, 16))
    >>> kte.dot_product_attention(x, x, x, is_causal=True).shape
    (2, 8, 4, 16)
    """
    visibility = _visibility(query, mask, is_causal, local_window_size)
    if visibility is not None and bias is None and kernel.is_long(query, key):
        cores = kernel.current_cores()
        if cores is not None and kernel.unsuitable(query, key, value, cores) is None:
            return kernel.attention(query, key, value, visibility, cores, scale)
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias,
        mask,
        scale=scale,
        is_causal=is_causal,
        local_window_size=local_window_size,
    )


def _visibility(
    query: jax.Array,
    mask: jax.Array | None,
    is_causal: bool,
    local_window_size: int | tuple[int, int] | None,
) -> Visibility | None:
    """Returns the keys that each query sees; `None` if they follow no simple rule."""
    if query.ndim != _RANK:
        return None
    window = local_window_size
    if isinstance(window, int):
        window = (window, window)
    if mask is None:
        return Visibility(is_causal, window)
    if mask.ndim != _RANK or mask.shape[1:3] != (1, 1):
        return None
    return Visibility(is_causal, window, keys=jnp.asarray(mask[:, 0, 0], bool))
