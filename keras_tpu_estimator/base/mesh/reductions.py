"""Sums and means over mesh axes, in a sufficiently wide dtype."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.mesh.replica_groups import Groups


def sum_over(
    nest: PyTree,
    axes: Sequence[str],
    groups: Groups | None = None,
    dtype: jax.typing.DTypeLike | None = None,
) -> PyTree:
    """Returns sums over axes; for booleans, the number of true values.

    Args:
        nest: A pytree of one core's tensors or numbers.
        axes: Axes of the current `shard_map`.
        groups: Groups of cores with separate sums. Defaults to one group.
        dtype: The dtype in which floats are summed. Defaults to `None`, for at
            least float32, because a sum may overflow float16.
    """
    return _reduced(jax.lax.psum, nest, axes, groups, dtype)


def mean_over(
    nest: PyTree,
    axes: Sequence[str],
    groups: Groups | None = None,
    dtype: jax.typing.DTypeLike | None = None,
) -> PyTree:
    """Returns means over axes, with arguments as in `sum_over`."""
    return _reduced(jax.lax.pmean, nest, axes, groups, dtype)


def _reduced(
    reduction: Callable[..., jax.Array],
    nest: PyTree,
    axes: Sequence[str],
    groups: Groups | None,
    dtype: jax.typing.DTypeLike | None,
) -> PyTree:
    def one(leaf: jax.Array) -> jax.Array:
        own = jnp.asarray(leaf).dtype
        if not jnp.issubdtype(own, jnp.inexact):
            return reduction(leaf, axes, axis_index_groups=groups)
        is_real = jnp.issubdtype(own, jnp.floating)
        given = (dtype if is_real else None) or jnp.promote_types(own, jnp.float32)
        reduced = reduction(jnp.asarray(leaf, given), axes, axis_index_groups=groups)
        return reduced.astype(own)

    return jax.tree.map(one, nest)
