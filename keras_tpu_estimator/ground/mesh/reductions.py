"""Sums and means over axes of a mesh, in a dtype that holds them."""

from collections.abc import Callable
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.mesh.replica_groups import Groups


def sum_over(
    nest: Nest,
    axes: Sequence[str],
    groups: Groups | None = None,
    dtype: jax.typing.DTypeLike | None = None,
) -> Nest:
    """The sums over axes; of booleans, how many are true.

    Args:
        nest: Nest of tensors of one core, or of numbers.
        axes: The axes, which are those of the `shard_map` that is traced.
        groups: Groups of cores that have sums of their own. Defaults to one of
            all.
        dtype: What floats are cast to on the way. Defaults to `None`: float32
            at least, for of what one core has in float16, all of them may have
            too much.
    """
    return _reduced(jax.lax.psum, nest, axes, groups, dtype)


def mean_over(
    nest: Nest,
    axes: Sequence[str],
    groups: Groups | None = None,
    dtype: jax.typing.DTypeLike | None = None,
) -> Nest:
    """The means over axes; floats of integers.

    Args:
        nest: As in `sum_over`.
    """
    return _reduced(jax.lax.pmean, nest, axes, groups, dtype)


def _reduced(
    reduction: Callable[..., jax.Array],
    nest: Nest,
    axes: Sequence[str],
    groups: Groups | None,
    dtype: jax.typing.DTypeLike | None,
) -> Nest:
    def one(leaf: jax.Array) -> jax.Array:
        own = jnp.asarray(leaf).dtype
        if not jnp.issubdtype(own, jnp.inexact):
            return reduction(leaf, axes, axis_index_groups=groups)
        is_real = jnp.issubdtype(own, jnp.floating)
        given = (dtype if is_real else None) or jnp.promote_types(
            own, jnp.float32
        )
        reduced = reduction(
            jnp.asarray(leaf, given), axes, axis_index_groups=groups
        )
        return reduced.astype(own)

    return jax.tree.map(one, nest)
