"""Learning rates that `model_fn` computes.

They are worked out where `model_fn` runs, and carried to the update, which is
made when it has returned.
"""

import contextlib
import inspect
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras

from keras_tpu_estimator.ground.tracing import keras_internals


def computed_rates(
    optimizers: Sequence[keras.optimizers.Optimizer], global_step: Any
) -> tuple[Any, ...]:
    """The learning rates that functions or tensors of a `model_fn` say.

    Args:
        optimizers: Those that have a learning rate. Those that have a number
            or a schedule of Keras are left out.
        global_step: What functions of one argument are given.

    Returns:
        Scalar float32 tensors.

    Raises:
        TypeError: One is a function of TensorFlow, or of several arguments.
        ValueError: One is not a scalar.
    """
    return tuple(
        _scalar(_call(function, global_step), each)
        for each, function in _computed(optimizers)
    )


@contextlib.contextmanager
def at_rates(
    optimizers: Sequence[keras.optimizers.Optimizer], rates: Sequence[Any]
) -> Iterator[None]:
    """Gives optimizers learning rates in a `with` block.

    Args:
        optimizers: As for `computed_rates`.
        rates: What that has returned.
    """
    with contextlib.ExitStack() as stack:
        for (each, _), rate in zip(_computed(optimizers), rates, strict=True):
            stack.enter_context(keras_internals.at_rate(each, rate))
        yield


def _computed(
    optimizers: Sequence[keras.optimizers.Optimizer],
) -> list[tuple[keras.optimizers.Optimizer, Callable[..., Any]]]:
    return [
        (each, function)
        for each in optimizers
        if (function := keras_internals.rate_function(each)) is not None
    ]


def _call(function: Callable[..., Any], global_step: Any) -> Any:
    inner = inspect.unwrap(getattr(function, "func", function))
    if str(inner.__module__).partition(".")[0] == "tensorflow":
        raise TypeError(
            "The learning rate of a Keras optimizer should be a number, a "
            "tensor, a function of JAX or a schedule of Keras. Received one of "
            "tf.train's decays: take its counterpart in "
            "keras.optimizers.schedules; see docs/migrating.md#6-optimizer."
        )
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [
        p for p in parameters if p.default is p.empty and p.kind not in variadic
    ]
    if len(required) > 1:
        raise TypeError(
            "The function of a learning rate should take no argument, or the "
            f"global step. Received one of {[p.name for p in required]}."
        )
    return function(global_step) if required else function()


def _scalar(rate: Any, optimizer: keras.optimizers.Optimizer) -> Any:
    rate = keras.ops.convert_to_tensor(rate)
    if rate.ndim:
        raise ValueError(
            f"The learning rate of {optimizer.name!r} should be a scalar. "
            f"Received a tensor of shape {rate.shape}."
        )
    return keras.ops.cast(rate, "float32")
