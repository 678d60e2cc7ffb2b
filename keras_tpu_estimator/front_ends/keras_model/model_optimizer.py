"""The optimizers of a `model_fn` as a model's `optimizer`."""

from collections.abc import Mapping
from typing import Any

import jax
import keras


class ModelOptimizer:
    """The value of `model.optimizer`: the current optimizers of `model_fn`.

    `model_fn` creates new optimizers in every trace; here they use the
    variables of the program, by path. With one optimizer, its attributes are
    available here and on `inner_optimizer`, as in Keras's `LossScaleOptimizer`.
    Several are in `optimizers`, as in Keras's `MultiOptimizer`. There is no
    optimizer before `model_fn` has run in mode TRAIN.

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
        """Stores optimizers, which then use these variables.

        Args:
            optimizers: Optimizers by name. Known names keep their optimizer.
            variables: The program's variables by path.
        """
        for name, optimizer in optimizers.items():
            if name not in self._twins:
                self._twins[name] = _with_variables(optimizer, variables)

    @property
    def learning_rate(self) -> Any:
        """The only optimizer's learning rate: a variable, or the current value.

        Raises:
            AttributeError: The model has no optimizer yet, or several.
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
                "The learning rate must be set to a number, because a "
                "schedule would have no effect on compiled steps. Received: "
                f"{value!r}. Return the schedule from model_fn instead."
            )
        self._only("learning_rate").learning_rate = value

    def __getattr__(self, name: str) -> Any:
        # Python only calls this for attributes that are not found otherwise.
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
            else "none: train first, because model_fn creates it in mode TRAIN"
        )
        raise AttributeError(
            f"`model.optimizer.{attribute}` needs a model with one optimizer. "
            f"Received one with {found}."
        )


def _readable_rate(optimizer: keras.optimizers.Optimizer) -> Any:
    """Returns the learning rate; `None` if only `model_fn` can compute it."""
    try:
        rate = optimizer.learning_rate
    except (ValueError, jax.errors.JAXTypeError):
        # A function of traced tensors, or of `get_global_step()`.
        return None
    return None if isinstance(rate, jax.core.Tracer) else rate


def _with_variables(
    optimizer: keras.optimizers.Optimizer,
    variables: Mapping[str, keras.Variable],
) -> keras.optimizers.Optimizer:
    """Returns a copy of an optimizer with other variables of the same paths."""

    def swapped(value: Any) -> Any:
        if isinstance(value, keras.Variable):
            return variables.get(value.path, value)
        if isinstance(value, keras.optimizers.Optimizer):
            return _with_variables(value, variables)
        # Optax transformations are named tuples of functions.
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(swapped(each) for each in value)
        return value

    # Keras copies objects by saving them, and tracks assignments.
    twin = object.__new__(type(optimizer))
    twin.__dict__.update({k: swapped(v) for k, v in vars(optimizer).items()})
    return twin
