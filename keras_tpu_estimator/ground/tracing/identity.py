"""Tensors of a `model_fn` that hooks fetch by name."""

import contextlib
import contextvars
from collections.abc import Container, Iterable, Iterator

import jax
import keras

from keras_tpu_estimator.ground.base.plain_names import plain_name
from keras_tpu_estimator.ground.base.types import TensorLike

_named: contextvars.ContextVar[dict[str, jax.Array] | None] = contextvars.ContextVar(
    "named_tensors", default=None
)
# What hooks fetch under these names is no tensor of `model_fn`.
_RESERVED = {"loss": "the loss", "global_step": "the number of steps made"}


def identity(input: TensorLike, name: str | None = None) -> jax.Array:
    """Names a tensor of a `model_fn`, so that hooks can fetch it.

    The counterpart of `tf.identity`. A tensor leaves the devices only when a
    hook asks for it.

    Args:
        input: Tensor of any shape. Tensors of several cores or micro-batches
            are concatenated along their first axis. Of scalars the mean is
            fetched; of integers that depend on the batch, the sum; of
            booleans, whether any is true.
        name: What hooks fetch it under; not `"loss"`, `"global_step"` or the
            path of a variable, which they can fetch anyway. Defaults to
            `None`, for nothing.

    Returns:
        The tensor.

    Raises:
        ValueError: The name was given before in this call of `model_fn`, or
            is that of something else. If it is the path of a variable, the
            error comes when `model_fn` has returned.

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
    name = plain_name(name)
    if name in _RESERVED:
        raise ValueError(
            f"`name` should not be {name!r}, under which hooks can fetch "
            f"{_RESERVED[name]} anyway. Leave it out, or give this tensor "
            "another name."
        )
    if name in named:
        raise ValueError(
            f"Two tensors have the name {name!r}. Expected one for each name "
            "in one call of model_fn: give this one another `name`."
        )
    named[name] = tensor
    return tensor


def check_apart(named: Iterable[str], paths: Container[str]) -> None:
    """Checks that no tensor is called like a variable.

    Args:
        named: Names that `identity` was given in a call of `model_fn`.
        paths: Paths of the model's variables.

    Example:

    >>> from keras_tpu_estimator.ground.tracing.identity import check_apart
    >>> check_apart(["largest"], ["dense/bias"])
    """
    for name in named:
        if name in paths:
            raise ValueError(
                f"A tensor is named {name!r}, which is the path of a variable. "
                "Expected names that are nothing else's. Hooks can fetch the "
                "variable by its path: leave out the `name` of kte.identity, "
                "or choose another."
            )


@contextlib.contextmanager
def names_collected() -> Iterator[dict[str, jax.Array]]:
    """Collects the tensors that are named in a `with` block, by name."""
    named: dict[str, jax.Array] = {}
    token = _named.set(named)
    try:
        yield named
    finally:
        _named.reset(token)
