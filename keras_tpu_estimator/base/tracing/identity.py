"""Tensors of a `model_fn` that hooks fetch by name."""

import contextlib
import contextvars
from collections.abc import Container, Iterable, Iterator

import jax
import keras

from keras_tpu_estimator.base.common.shown import plain_name
from keras_tpu_estimator.base.common.types import TensorLike

_named: contextvars.ContextVar[dict[str, jax.Array] | None] = contextvars.ContextVar(
    "named_tensors", default=None
)
# Hooks fetch other values than tensors of `model_fn` under these names.
_RESERVED = {"loss": "the loss", "global_step": "the number of steps made"}


def identity(input: TensorLike, name: str | None = None) -> jax.Array:
    """Names a tensor of a `model_fn`, so that hooks can fetch it.

    The counterpart of `tf.identity`. A tensor leaves the devices only when a hook
    fetches it.

    Args:
        input: A tensor of any shape. Tensors of several cores or micro-batches are
            concatenated along their first axis. For scalars, the mean is fetched; for
            integers that depend on the batch, the sum; for booleans, whether any is
            true.
        name: The name for hooks; not `"loss"`, `"global_step"` or the path of a
            variable, which hooks can fetch anyway. Defaults to `None`: no name.

    Returns:
        The tensor.

    Raises:
        ValueError: The name was used before in this call of `model_fn`, or belongs to
            something else. For the path of a variable, the error is raised after
            `model_fn` returns.

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
            f"`name` must not be {name!r}, under which hooks can fetch "
            f"{_RESERVED[name]} anyway. Omit it, or choose another name."
        )
    if name in named:
        raise ValueError(
            "Names of tensors must be unique in one call of model_fn. Received: "
            f"two tensors with the name {name!r}. Choose another `name`."
        )
    named[name] = tensor
    return tensor


def check_apart(named: Iterable[str], paths: Container[str]) -> None:
    """Checks that no tensor has the path of a variable as its name."""
    for name in named:
        if name in paths:
            raise ValueError(
                "The name of a tensor must not be the path of a variable, which "
                f"hooks can fetch anyway. Received: {name!r}. Omit the `name` "
                "of kte.identity, or choose another one."
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
