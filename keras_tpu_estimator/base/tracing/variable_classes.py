"""Classes of variables: PRNG keys, sharded rows, and slots with an owner."""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.base.upstream import keras_state, keras_variables


class KeyVariable(keras.Variable):
    """The data of a typed PRNG key, as integers; each core has its own key."""


def is_key(value: object) -> bool:
    """Returns whether a value is a typed key or an array of keys."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


class RowsVariable(keras.Variable):
    """A variable whose rows are sharded over all cores.

    Its array on devices may have additional rows of zeros, so that each core has the
    same number of rows. Its shape, its value and its assigned values exclude them.
    """

    @property
    def value(self) -> jax.Array:
        """The rows without padding rows."""
        rows: jax.Array = own_rows(super().value, self.shape[0])
        return rows

    @property
    def device_value(self) -> jax.Array:
        """The last assigned array, including padding rows."""
        value: jax.Array = super().value
        return value

    def set_device_value(self, value: jax.Array | np.ndarray) -> None:
        """Sets an array of devices, without copying it."""
        keras_variables.hold(self, value)


def store_value(variable: keras.Variable, value: jax.Array | np.ndarray) -> None:
    """Assigns a value with or without padding rows."""
    has_more = tuple(value.shape) != tuple(variable.shape)
    if isinstance(variable, RowsVariable) and has_more:
        variable.set_device_value(value)
    else:
        variable.assign(value)


def stored_value(variable: keras.Variable) -> jax.Array:
    """Returns the last assigned value, including padding rows."""
    if isinstance(variable, RowsVariable):
        return variable.device_value
    value: jax.Array = variable.value
    return value


def own_rows(value: Any, rows: int) -> Any:
    """Returns an array's first rows, or all if other hosts have some."""
    if len(value) == rows or not getattr(value, "is_fully_addressable", True):
        return value
    return value[:rows]


def without_value(path: str, **settings: Any) -> keras.Variable:
    """Makes a variable at a path, which has no value yet.

    `settings` are arguments of `keras.Variable`, such as its shape.
    """
    stateless = keras.StatelessScope(initialize_variables=False)
    with keras_state.fresh_names(), stateless:
        variable = keras.Variable("zeros", name=path.rpartition("/")[2], **settings)
    keras_variables.set_path(variable, path)
    return variable


class SlotVariable(keras.Variable):
    """An optimizer's variable whose path does not contain its owner.

    The owner is the path of the variable whose layout it uses.
    """

    owner: str | None = None
