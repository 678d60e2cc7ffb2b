"""The optimizers of a `model_fn`, where Keras looks for a model's optimizer."""

from collections.abc import Mapping
from typing import Any

import jax
import keras


class ModelOptimizer:
    """What `model.optimizer` is: the optimizers of `model_fn`, live.

    `model_fn` makes its optimizers anew in every trace; the variables of the
    program stand for theirs, by path. With one optimizer, its attributes are
    found here and under `inner_optimizer`, as with Keras's
    `LossScaleOptimizer`; several are under `optimizers`, as with Keras's
    `MultiOptimizer`. There is none until `model_fn` has run in mode TRAIN.

    Args:
        iterations: The variable that counts training steps.

    Example:

    >>> import keras
    >>> optimizer = ModelOptimizer(keras.Variable(0, dtype="int32"))
    >>> sgd = keras.optimizers.SGD(0.5)
    >>> optimizer.adopt({"sgd": sgd}, {v.path: v for v in sgd.variables})
    >>> optimizer.learning_rate = 0.25
    >>> float(sgd.learning_rate.value)
    0.25
    """

    built = True

    def __init__(self, iterations: keras.Variable):
        self.iterations = iterations
        self.variables: list[keras.Variable] = []
        self._twins: dict[str, keras.optimizers.Optimizer] = {}

    def adopt(
        self,
        optimizers: Mapping[str, keras.optimizers.Optimizer],
        variables: Mapping[str, keras.Variable],
    ) -> None:
        """Takes optimizers over, with these variables in place of their own.

        Args:
            optimizers: By name. Those known by name stay.
            variables: The program's, by path.
        """
        for name, optimizer in optimizers.items():
            if name not in self._twins:
                self._twins[name] = _with_variables(optimizer, variables)

    @property
    def learning_rate(self) -> Any:
        """The only optimizer's learning rate: a variable, or a value now.

        Raises:
            AttributeError: There is no optimizer yet, or there are several.
            ValueError: `model_fn` computes it.
        """
        rate = _readable_rate(self._only("learning_rate"))
        if rate is None:
            raise ValueError(
                "The learning rate cannot be read outside model_fn, which "
                "computes it. Expected a number or a "
                "keras.optimizers.schedules.LearningRateSchedule as the "
                "optimizer's `learning_rate`."
            )
        return rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if callable(value):
            raise TypeError(
                "The learning rate should be set to a number: a schedule "
                "would have no effect on compiled steps. Received: "
                f"{value!r}. Return the schedule from model_fn instead."
            )
        self._only("learning_rate").learning_rate = value

    def __getattr__(self, name: str) -> Any:
        # Only what is not found otherwise comes here.
        twins = self.__dict__.get("_twins", {})
        if name == "optimizers" and len(twins) > 1:
            return list(twins.values())
        only = self._only(name)
        if name != "inner_optimizer":
            return getattr(only, name)
        if _readable_rate(only) is None:
            # Otherwise TensorBoard would read it.
            raise AttributeError("The optimizer has no readable learning rate.")
        return only

    def _only(self, attribute: str) -> keras.optimizers.Optimizer:
        twins = self.__dict__.get("_twins", {})
        if len(twins) == 1:
            return next(iter(twins.values()))
        found = (
            f"several optimizers, {sorted(twins)}: use one of `optimizers`"
            if twins
            else "none: train first, since model_fn makes it in mode TRAIN"
        )
        raise AttributeError(
            f"`model.optimizer.{attribute}` needs a model with one optimizer. "
            f"Received one with {found}."
        )


def _readable_rate(optimizer: keras.optimizers.Optimizer) -> Any:
    """The learning rate, or `None` if only `model_fn` can compute it."""
    try:
        rate = optimizer.learning_rate
    except (ValueError, jax.errors.JAXTypeError):
        # A function of tensors of the trace, or of `get_global_step()`.
        return None
    return None if isinstance(rate, jax.core.Tracer) else rate


def _with_variables(
    optimizer: keras.optimizers.Optimizer,
    variables: Mapping[str, keras.Variable],
) -> keras.optimizers.Optimizer:
    """An optimizer like this one, on other variables of the same paths."""

    def swapped(value: Any) -> Any:
        if isinstance(value, keras.Variable):
            return variables.get(value.path, value)
        if isinstance(value, keras.optimizers.Optimizer):
            return _with_variables(value, variables)
        # What optax makes is a named tuple, of functions.
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(swapped(each) for each in value)
        return value

    # Keras copies objects by saving them, and tracks what is assigned.
    twin = object.__new__(type(optimizer))
    twin.__dict__.update({k: swapped(v) for k, v in vars(optimizer).items()})
    return twin
