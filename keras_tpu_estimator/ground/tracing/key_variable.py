"""A variable that holds a typed PRNG key of JAX."""

import jax
import jax.numpy as jnp
import keras


class KeyVariable(keras.Variable):
    """The data of a key, which variables, files and devices take for integers.

    Each core has a key of its own, as it has of Keras's seeds.
    """


def is_key(value: object) -> bool:
    """Whether something is a typed key, or an array of them.

    Example:

    >>> is_key(jax.random.key(0)), is_key(jax.random.PRNGKey(0))
    (True, False)
    """
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
