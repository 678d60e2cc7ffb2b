"""What XLA fuses on a CPU, and what it should not."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax


def once(function: Callable[..., jax.Array], *args: jax.Array) -> tuple[jax.Array, ...]:
    """Computes arrays once, and not for each place that reads them.

    XLA fuses what is cheap into what reads it, over optimization barriers, too,
    and computes it there as often as it is read: 49 times in a window of 7 x 7.
    What comes out of a branch it does not fuse.

    Args:
        function: A function of arrays, the first one of floats.
        *args: The arrays, of at least one element.

    Returns:
        What the function returns, and the arrays.
    """
    number = args[0].ravel()[0]
    # It always is, but XLA does not know.
    is_one = (number == number) | jnp.isnan(number)  # noqa: PLR0124
    out = jax.eval_shape(function, *args)
    return lax.cond(
        is_one,
        lambda *args: (function(*args), *args),
        lambda *args: tuple(jnp.zeros(x.shape, x.dtype) for x in (out, *args)),
        *args,
    )
