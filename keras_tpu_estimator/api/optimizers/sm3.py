"""The SM3 optimizer: Adagrad in the memory of a few vectors."""

import functools
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_tpu_estimator")
class SM3(keras.optimizers.Optimizer):
    """Adagrad that stores a number for each row and column, not each weight.

    [Memory-Efficient Adaptive Optimization](https://arxiv.org/abs/1901.11150),
    algorithm SM3-II with momentum, like the authors' `SM3Optimizer`. With
    `momentum=0.0`, a matrix of m x n weights needs m + n numbers; a momentum
    needs another m x n. `keras.optimizers.Adafactor` stores its factors and the
    full matrix.

    Args:
        learning_rate: As in every Keras optimizer. It does not have to
            decrease.
        momentum: The share of the last direction that is kept. Defaults to 0.9.
        **kwargs: Arguments of every Keras optimizer, such as `name`,
            `weight_decay`, `global_clipnorm` and `use_ema`.

    Example:

    >>> import keras
    >>> import keras_tpu_estimator as kte
    >>> kernel = keras.Variable([[1.0, 1.0]], name="kernel")
    >>> optimizer = kte.optimizers.SM3(0.5, momentum=0.0, name="sm3")
    >>> optimizer.apply([keras.ops.array([[3.0, -4.0]])], [kernel])
    >>> kernel.numpy().tolist()
    [[0.5, 1.5]]
    >>> {each.path: each.shape for each in optimizer.variables[2:]}
    {'sm3/kernel_accumulator_0': (1,), 'sm3/kernel_accumulator_1': (2,)}
    """

    def __init__(self, learning_rate: Any, momentum: float = 0.9, **kwargs: Any):
        super().__init__(learning_rate, **kwargs)
        self.momentum = momentum

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates a vector for each axis of each variable, and a momentum."""
        if self.built:
            return
        super().build(variables)
        self._accumulators = [self._vectors(variable) for variable in variables]
        self._momentums = (
            self.add_optimizer_variables(variables, "momentum") if self.momentum else []
        )

    def _vectors(self, variable: keras.Variable) -> list[keras.Variable]:
        """Returns the numbers of the rows of each axis; of a vector, itself."""
        if len(variable.shape) < 2:
            return [self.add_variable_from_reference(variable, "accumulator")]
        owner = variable.path.replace("/", "_")
        return [
            self.add_variable(
                (size,), dtype=variable.dtype, name=f"{owner}_accumulator_{i}"
            )
            for i, size in enumerate(variable.shape)
        ]

    def update_step(
        self, gradient: Any, variable: keras.Variable, learning_rate: Any
    ) -> None:
        """Updates one variable and its slots."""
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        index = self._get_variable_index(variable)
        squares = self._squares(gradient, self._accumulators[index])
        # If all gradients were zero, this one also is.
        direction = gradient * ops.rsqrt(squares + 1e-30)
        if self.momentum:
            slot = self._momentums[index]
            direction = self.momentum * slot + (1 - self.momentum) * direction
            self.assign(slot, direction)
        self.assign_sub(variable, rate * direction)

    def _squares(self, gradient: Any, accumulators: list[keras.Variable]) -> Any:
        """Returns bounds of the sums of squares, for the accumulators."""
        rank = len(gradient.shape)
        if rank < 2:
            squares = accumulators[0] + ops.square(gradient)
            self.assign(accumulators[0], squares)
            return squares
        other_axes = [[j for j in range(rank) if j != i] for i in range(rank)]
        bounds = [
            ops.expand_dims(vector, axes)
            for vector, axes in zip(accumulators, other_axes, strict=True)
        ]
        squares = functools.reduce(ops.minimum, bounds) + ops.square(gradient)
        for vector, axes in zip(accumulators, other_axes, strict=True):
            self.assign(vector, ops.max(squares, axis=axes))
        return squares

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration of the optimizer, without its slots."""
        return {**super().get_config(), "momentum": self.momentum}
