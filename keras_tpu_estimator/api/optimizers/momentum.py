"""Optimizers of `tf.train` whose numbers differ from those of Keras's."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_tpu_estimator")
class Momentum(keras.optimizers.Optimizer):
    """Gradient descent whose momentum does not contain the learning rate.

    The counterpart of `tf.compat.v1.train.MomentumOptimizer`: `m = momentum * m + g`,
    then `w -= rate * m`. `keras.optimizers.SGD` adds `rate * g` to its momentum. Both
    give the same numbers only while the rate is constant.

    Args:
        learning_rate: As in every Keras optimizer.
        momentum: The share of the last direction that is kept. Defaults to 0.9.
        nesterov: Whether the gradient counts again, as with Nesterov momentum. Defaults
            to `False`.
        **kwargs: Arguments of every Keras optimizer, such as `name`, `weight_decay`,
            `global_clipnorm` and `use_ema`.

    Example:

    >>> import keras
    >>> import keras_tpu_estimator as kte
    >>> kernel = keras.Variable([1.0, 1.0], name="kernel")
    >>> optimizer = kte.optimizers.Momentum(0.5, momentum=0.9)
    >>> optimizer.apply([keras.ops.array([1.0, -1.0])], [kernel])
    >>> kernel.numpy().tolist()
    [0.5, 1.5]
    """

    def __init__(
        self,
        learning_rate: Any,
        momentum: float = 0.9,
        nesterov: bool = False,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, **kwargs)
        self.momentum = momentum
        self.nesterov = nesterov

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates the momentum of each variable."""
        if self.built:
            return
        super().build(variables)
        self._momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(
        self, gradient: Any, variable: keras.Variable, learning_rate: Any
    ) -> None:
        """Updates one variable and its momentum."""
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        slot = self._momentums[self._get_variable_index(variable)]
        direction = self.momentum * slot + gradient
        self.assign(slot, direction)
        if self.nesterov:
            direction = gradient + self.momentum * direction
        self.assign_sub(variable, rate * direction)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        config = super().get_config()
        return {**config, "momentum": self.momentum, "nesterov": self.nesterov}


@keras.saving.register_keras_serializable("keras_tpu_estimator")
class RMSProp(keras.optimizers.RMSprop):
    """Keras's RMSprop, with averages of squares that begin at one.

    The counterpart of `tf.compat.v1.train.RMSPropOptimizer`, with its defaults. In the
    first steps, averages that begin at zero make larger updates.

    Args:
        learning_rate: As in every Keras optimizer.
        rho: The share of the last average that is kept. Defaults to 0.9.
        momentum: The share of the last update that is added. Defaults to 0.0.
        epsilon: A number that is added to the average. Defaults to 1e-10.
        centered: Whether the average of gradients is subtracted. Defaults to `False`.
        **kwargs: Arguments of every Keras optimizer, such as `name`.

    Example:

    >>> import keras
    >>> import keras_tpu_estimator as kte
    >>> kernel = keras.Variable([1.0], name="kernel")
    >>> optimizer = kte.optimizers.RMSProp(0.1)
    >>> optimizer.apply([keras.ops.array([1.0])], [kernel])
    >>> round(float(kernel[0]), 6)
    0.9
    """

    def __init__(
        self,
        learning_rate: Any,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-10,
        centered: bool = False,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, rho, momentum, epsilon, centered, **kwargs)

    def add_variable_from_reference(
        self,
        reference_variable: keras.Variable,
        name: str | None = None,
        initializer: Any = "zeros",
    ) -> keras.Variable:
        """Creates a slot, of ones for the average of squares."""
        start = "ones" if name == "velocity" else initializer
        return super().add_variable_from_reference(reference_variable, name, start)
