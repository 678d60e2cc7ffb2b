"""Tensors of a `model_fn` that hooks fetch by name."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import keras

_named: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar(
    "named_tensors", default=None
)


def identity(input: Any, name: str | None = None) -> Any:
    """Names a tensor of a `model_fn`, so that hooks can fetch it.

    The counterpart of `tf.identity`. A tensor leaves the devices only when a
    hook asks for it.

    Args:
        input: Tensor of any shape. From several cores, tensors are
            concatenated along their first axis; of scalars, the mean is
            fetched.
        name: What hooks fetch it under. Defaults to `None`, for nothing.

    Returns:
        The tensor.

    Raises:
        ValueError: The name was given before in this call of `model_fn`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import keras, numpy as np
    >>> def model_fn(features, labels, mode, params):
    ...     y = keras.layers.Dense(1)(features)
    ...     loss = keras.ops.mean((y - labels) ** 2)
    ...     kte.identity(keras.ops.max(y), name="largest")
    ...     optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    ...     return kte.TPUEstimatorSpec(
    ...         mode, loss=loss, train_op=optimizer.minimize(loss))
    """
    tensor = keras.ops.convert_to_tensor(input)
    named = _named.get()
    if name is None or named is None:
        return tensor
    name = name.removesuffix(":0")
    if name in named:
        raise ValueError(
            f"Two tensors have the name {name!r}. Expected one for each name "
            "in one call of model_fn: give this one another `name`."
        )
    named[name] = tensor
    return tensor


@contextlib.contextmanager
def names_collected() -> Iterator[dict[str, Any]]:
    """Collects the tensors that are named in a `with` block, by name."""
    token = _named.set({})
    try:
        yield _named.get()
    finally:
        _named.reset(token)
