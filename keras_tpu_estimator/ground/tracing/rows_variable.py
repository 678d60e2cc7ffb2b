"""A variable whose rows lie over all cores, which may have more of them."""

from typing import Any

import jax
import keras
import numpy as np

from keras_tpu_estimator.ground.tracing import keras_internals


class RowsVariable(keras.Variable):
    """A variable that user code sees with its own rows alone.

    What it is lent may have some more, of zeros, so that all cores have as many
    each. Its shape, its value, and what is assigned to it are without them.

    Example:

    >>> variable = RowsVariable("zeros", shape=(3,))
    >>> give(variable, np.arange(4.0))
    >>> variable.numpy().tolist(), given(variable).tolist()
    ([0.0, 1.0, 2.0], [0.0, 1.0, 2.0, 3.0])
    """

    @property
    def value(self) -> jax.Array:
        """Its rows, without those that only devices have."""
        rows: jax.Array = own_rows(super().value, self.shape[0])
        return rows

    @property
    def lent(self) -> jax.Array:
        """What it was lent or assigned last, as that is."""
        lent: jax.Array = super().value
        return lent

    def lend(self, value: jax.Array | np.ndarray) -> None:
        """Has it show an array that devices have, which is not copied."""
        keras_internals.hold(self, value)


def give(variable: keras.Variable, value: jax.Array | np.ndarray) -> None:
    """Gives a variable a value as devices have it, or as user code has."""
    has_more = tuple(value.shape) != tuple(variable.shape)
    if isinstance(variable, RowsVariable) and has_more:
        variable.lend(value)
    else:
        variable.assign(value)


def given(variable: keras.Variable) -> jax.Array:
    """What a variable was given, or assigned, last."""
    if isinstance(variable, RowsVariable):
        return variable.lent
    value: jax.Array = variable.value
    return value


def own_rows(value: Any, rows: int) -> Any:
    """The first rows of an array; the array itself if that is all.

    What other hosts have parts of stays as it is.
    """
    if len(value) == rows or not getattr(value, "is_fully_addressable", True):
        return value
    return value[:rows]
