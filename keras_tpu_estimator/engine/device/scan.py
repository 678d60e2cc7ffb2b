"""A loop over stacked steps whose length is an argument.

`jax.lax.scan` is compiled for one number of steps. Here the steps to make are
values, so that one compiled program makes any number of those it is given.

Large outputs, such as images, are kept of the last step only: to stack them
would need the memory of all steps.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.tracing import jaxprs


def scan_with_newest(
    step: Callable[[Nest, Nest], tuple[Nest, Nest, Nest]],
    state: Nest,
    xs: Nest,
    span: jax.Array,
) -> tuple[Nest, Nest, Nest]:
    """Makes one step for each of some of `xs`.

    Args:
        step: Takes a state and one of `xs`. Returns the next state and two
            nests of outputs.
        state: The first state.
        xs: Nest of arrays that are stacked along their first axis.
        span: Two integers: the first of `xs` to use, and the one after the
            last. At least one is used.

    Returns:
        The last state; the first outputs, stacked, in the rows of `span`, with
        zeros in all other rows; and the second outputs of the last step.

    Example:

    >>> import jax.numpy as jnp
    >>> from keras_tpu_estimator.engine.device.scan import scan_with_newest
    >>> total, totals, last = scan_with_newest(
    ...     lambda total, x: (total + x, total + x, x),
    ...     0, jnp.arange(4), jnp.array([0, 3]))
    >>> int(total), totals.tolist(), int(last)
    (3, [0, 1, 3, 0], 2)
    """
    rows = len(jax.tree.leaves(xs)[0])

    def at(index: jax.Array | int) -> Nest:
        return jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), xs
        )

    # Traced once, for the shapes of its outputs and for the loop; a jitted step
    # is one equation there. JAX would not prune the body of this loop.
    traced, shapes = jax.make_jaxpr(jax.jit(step), return_shape=True)(state, at(0))
    run = jex.jaxpr_as_fun(jaxprs.without_dead_code(traced))
    _, stacked, newest = shapes
    outputs_of = functools.partial(jax.tree.unflatten, jax.tree.structure(shapes))
    none_yet = (
        jax.tree.map(lambda s: jnp.zeros((rows, *s.shape), s.dtype), stacked),
        jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), newest),
    )

    def make(index: jax.Array, carry: Nest) -> Nest:
        state, stacked, _ = carry
        inputs = jax.tree.leaves((state, at(index)))
        state, outputs, newest = outputs_of(run(*inputs))
        stacked = jax.tree.map(
            lambda rows, row: jax.lax.dynamic_update_index_in_dim(
                rows, row, index, axis=0
            ),
            stacked,
            outputs,
        )
        return state, stacked, newest

    last: tuple[Nest, Nest, Nest] = jax.lax.fori_loop(
        span[0], span[1], make, (state, *none_yet)
    )
    return last
