"""Division by sums that may be zero."""

import jax
import jax.numpy as jnp
from keras import ops


def ratio(part: jax.Array, whole: jax.Array) -> jax.Array:
    """Divides two sums, elementwise; 0 where `whole` is not positive.

    Negative weights can make `whole` negative. NaN stays NaN.
    """
    return ops.divide_no_nan(part, jnp.maximum(whole, 0))
