"""Sums and means over axes of a mesh, which no dtype is too small for."""

from collections.abc import Callable
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from keras_tpu_estimator.base.types import Nest
from keras_tpu_estimator.mesh.replica_groups import Groups


def sum_over(
    nest: Nest, axes: Sequence[str], groups: Groups | None = None
) -> Nest:
    """The sums over axes; of booleans, how many are true.

    Args:
        nest: Nest of tensors of one core, or of numbers.
        axes: The axes, which are those of the `shard_map` that is traced.
        groups: Groups of cores that have sums of their own. Defaults to one of
            all.
    """
    return _reduced(jax.lax.psum, nest, axes, groups)


def mean_over(
    nest: Nest, axes: Sequence[str], groups: Groups | None = None
) -> Nest:
    """The means over axes; floats of integers.

    Args:
        nest: As in `sum_over`.
        axes: The same.
        groups: The same.
    """
    return _reduced(jax.lax.pmean, nest, axes, groups)


def _reduced(
    reduction: Callable[..., jax.Array],
    nest: Nest,
    axes: Sequence[str],
    groups: Groups | None,
) -> Nest:
    def one(leaf: jax.Array) -> jax.Array:
        dtype = jnp.asarray(leaf).dtype
        is_narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
        if not is_narrow:
            return reduction(leaf, axes, axis_index_groups=groups)
        # Of what one core has in float16, all of them may have too much. And
        # XLA ends the process where it is to sum bfloat16 over some of the
        # axes of a mesh of CPUs.
        wide = jnp.asarray(leaf, jnp.float32)
        reduced = reduction(wide, axes, axis_index_groups=groups)
        return reduced.astype(dtype)

    return jax.tree.map(one, nest)
