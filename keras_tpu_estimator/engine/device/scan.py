"""A scan that stacks some outputs of its steps and keeps the newest of others.

What is large, such as images, and wanted once for many steps, must not be
stacked: it would need the memory of all of them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from keras_tpu_estimator.ground.base.types import Nest


def scan_with_newest(
    step: Callable[[Nest, Nest], tuple[Nest, Nest, Nest]], state: Nest, xs: Nest
) -> tuple[Nest, Nest, Nest]:
    """Makes one step for each of `xs`, as `jax.lax.scan` does.

    Args:
        step: Takes a state and one of `xs`. Returns the next state and two
            nests of outputs.
        state: The first state.
        xs: Nest of arrays that are stacked along their first axis.

    Returns:
        The last state, the first outputs of all steps, stacked, and the second
        outputs of the last step.

    Example:

    >>> import jax.numpy as jnp
    >>> from keras_tpu_estimator.engine.device.scan import scan_with_newest
    >>> total, totals, last = scan_with_newest(
    ...     lambda total, x: (total + x, total + x, x), 0, jnp.arange(4))
    >>> int(total), totals.tolist(), int(last)
    (6, [0, 1, 3, 6], 3)
    """
    # Traced once: for the shapes of its outputs, and in the scan.
    step = jax.jit(step)
    first = jax.tree.map(lambda x: x[0], xs)
    *_, shapes = jax.eval_shape(step, state, first)
    none_yet = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def keep(carry: tuple[Nest, Nest], x: Nest) -> tuple[Nest, Nest]:
        state, stacked, newest = step(carry[0], x)
        return (state, newest), stacked

    (state, newest), stacked = jax.lax.scan(keep, (state, none_yet), xs)
    return state, stacked, newest
