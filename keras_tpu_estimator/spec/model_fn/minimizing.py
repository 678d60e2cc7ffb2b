"""Minimising with an optimizer, whether it is wrapped or not."""

import contextlib
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras

from keras_tpu_estimator.spec.model_fn.cross_shard_optimizer import (
    CrossShardOptimizer,
)
from keras_tpu_estimator.spec.model_fn.updates import TrainOp
from keras_tpu_estimator.spec.optimizers.optax_optimizer import (
    GradientTransformation,
)

# What programs of TensorFlow 1 call of an optimizer, and Keras's lacks.
_OF_TENSORFLOW = {
    "compute_gradients": "kte.CrossShardOptimizer(optimizer)",
    "get_slot": "kte.CrossShardOptimizer(optimizer)",
    "get_slot_names": "kte.CrossShardOptimizer(optimizer)",
    "minimize": "kte.minimize(optimizer, loss)",
}


def minimize(
    optimizer: CrossShardOptimizer
    | keras.optimizers.Optimizer
    | GradientTransformation,
    loss: Any,
    global_step: Any = None,
    var_list: Sequence[keras.Variable] | None = None,
) -> TrainOp:
    """A train op that minimises `loss`, with a wrapped optimizer or a bare one.

    For `model_fn`s that make a `CrossShardOptimizer` only where
    `params["use_tpu"]` says so. A bare one averages gradients over the cores,
    too, if there are several.

    Args:
        optimizer: A `CrossShardOptimizer`, or any optimizer of Keras or optax.
        loss: Scalar tensor.
        var_list: Variables to update. Defaults to all trainable ones.
        global_step: Accepted for compatibility. Defaults to `None`.

    Returns:
        A `TrainOp`, for the `train_op` of a spec.

    Raises:
        ValueError: It is called outside a `model_fn`, there are no variables,
            or `loss` is not a scalar.
        TypeError: `optimizer` is neither.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> def train_op(loss, params):
    ...     optimizer = keras.optimizers.SGD(0.1)
    ...     if params["use_tpu"]:
    ...         optimizer = kte.CrossShardOptimizer(optimizer)
    ...     return kte.minimize(optimizer, loss)
    """
    if not isinstance(optimizer, CrossShardOptimizer):
        optimizer = CrossShardOptimizer(optimizer)
    return optimizer.minimize(loss, global_step, var_list)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Says what to call where Keras's optimizer lacks a method of TensorFlow's.

    Raises:
        AttributeError: In a `with` block, such a method was asked for.
    """
    try:
        yield
    except AttributeError as error:
        name = str(error.name)
        is_optimizer = isinstance(error.obj, keras.optimizers.Optimizer)
        if not is_optimizer or name not in _OF_TENSORFLOW:
            raise
        raise AttributeError(
            f"An optimizer of Keras has no `{name}`. Received: a call of it on "
            f"{type(error.obj).__name__}. Use `{_OF_TENSORFLOW[name]}`, with "
            "and without `use_tpu`: on one core it is the optimizer itself."
        ) from error
