"""A loop over stacked steps, and the values that it returns for each step.

`jax.lax.scan` is compiled for a fixed number of steps. In this loop the range of
steps is an argument, so that one compiled program runs any number of its rows.

Large outputs, such as images, are returned only for the last step, because
stacking them would need the memory of all steps.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.tracing import jaxprs


@dataclasses.dataclass(frozen=True, eq=False)
class StepValues:
    """One value for each step of a loop, sliced to those steps on the host.

    A loop returns rows for all steps that its program could run. NumPy sees
    only the rows of the steps that ran.

    Attributes:
        rows: Array of shape `[rows, ...]` on the devices.
        steps: The rows of the steps that ran.

    Example:

    >>> import numpy as np
    >>> values = StepValues(np.array([0, 1, 2, 0]), range(1, 3))
    >>> len(values), np.asarray(values).tolist()
    (2, [1, 2])
    """

    rows: jax.Array | np.ndarray
    steps: range

    @classmethod
    def of(cls, nest: PyTree, steps: range) -> PyTree:
        """Returns a pytree of arrays as one of `StepValues`."""
        return jax.tree.map(lambda rows: cls(rows, steps), nest)

    @classmethod
    def whole(cls, values: Any) -> Self:
        """Returns `StepValues`, or all rows of an array as some."""
        if isinstance(values, cls):
            return values
        rows = np.asarray(values)
        return cls(rows, range(len(rows)))

    def __len__(self) -> int:
        return len(self.steps)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        rows = np.asarray(self.rows)[self.steps.start : self.steps.stop]
        if dtype is not None:
            rows = rows.astype(dtype, copy=False)
        return np.array(rows) if copy else rows

    def block_until_ready(self) -> Self:
        """Waits until the devices have run the steps."""
        jax.block_until_ready(self.rows)
        return self


def scan_with_newest(
    step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree, PyTree]],
    state: PyTree,
    xs: PyTree,
    span: jax.Array,
) -> tuple[PyTree, PyTree, PyTree]:
    """Runs one step for each row in a range of `xs`.

    Args:
        step: Takes a state and one row. Returns the next state and two pytrees
            of outputs.
        state: The first state.
        xs: Pytree of arrays that are stacked along their first axis.
        span: Two integers: the first row, and the one after the last. The range
            must not be empty.

    Returns:
        The last state; the first outputs, stacked in the rows of `span`, with
        zeros in all other rows; and the second outputs of the last step.

    Example:

    >>> import jax.numpy as jnp
    >>> from keras_tpu_estimator.engine.device.step_values import scan_with_newest
    >>> total, totals, last = scan_with_newest(
    ...     lambda total, x: (total + x, total + x, x),
    ...     0, jnp.arange(4), jnp.array([0, 3]))
    >>> int(total), totals.tolist(), int(last)
    (3, [0, 1, 3, 0], 2)
    """
    rows = len(jax.tree.leaves(xs)[0])

    def at(index: jax.Array | int) -> PyTree:
        return jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), xs
        )

    # The step is traced once, for the shapes of its outputs and for the loop,
    # where a jitted step is one equation. JAX does not prune this loop's body.
    traced, shapes = jax.make_jaxpr(jax.jit(step), return_shape=True)(state, at(0))
    run = jex.jaxpr_as_fun(jaxprs.without_dead_code(traced))
    _, stacked, newest = shapes
    outputs_of = functools.partial(jax.tree.unflatten, jax.tree.structure(shapes))
    none_yet = (
        jax.tree.map(lambda s: jnp.zeros((rows, *s.shape), s.dtype), stacked),
        jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), newest),
    )

    def make(index: jax.Array, carry: PyTree) -> PyTree:
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

    last: tuple[PyTree, PyTree, PyTree] = jax.lax.fori_loop(
        span[0], span[1], make, (state, *none_yet)
    )
    return last
