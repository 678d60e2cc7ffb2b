"""Sums and means over mesh axes, and the groups of replicas that reduce together."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_tpu_estimator.base.common.types import PyTree

Groups = Sequence[Sequence[int]]


def check_groups(groups: Any) -> None:
    """Checks that groups have equal sizes and contain each replica once.

    Args:
        groups: A list of lists of replica numbers.

    Example:

    >>> check_groups([[0, 1, 2, 3]])
    """
    expected = "`group_assignment` should be a list of lists of replica numbers"
    if not _are_lists(groups):
        raise ValueError(
            f"{expected}. Received: {groups!r}. Leave it out for one group of "
            "all replicas."
        )
    if len({len(group) for group in groups}) > 1:
        raise ValueError(
            f"{expected}, all of one size. Received: {groups!r}, of sizes "
            f"{[len(group) for group in groups]}."
        )
    numbers = sorted(number for group in groups for number in group)
    if numbers != list(range(len(numbers))):
        raise ValueError(
            f"{expected} that holds each replica once, from 0 on. Received: {groups!r}."
        )


def check_partition(groups: Groups | None, num_replicas: int) -> None:
    """Checks that groups contain all replicas.

    Args:
        groups: Checked groups; `None` for one group of all replicas.
        num_replicas: The number of replicas. With one, any groups are valid,
            because nothing is reduced.

    Example:

    >>> check_partition([[0, 1], [2, 3]], num_replicas=4)
    """
    if groups is None or num_replicas == 1:
        return
    count = sum(len(group) for group in groups)
    if count != num_replicas:
        raise ValueError(
            "`group_assignment` should partition the "
            f"{num_replicas} replicas. Received {count} of them: "
            f"{groups!r}. Leave it out for one group of all replicas."
        )


def _are_lists(groups: Any) -> bool:
    """Returns whether these are non-empty lists of integers."""
    if not isinstance(groups, list | tuple) or not groups:
        return False
    return all(
        isinstance(group, list | tuple)
        and group
        and all(isinstance(number, int) for number in group)
        for group in groups
    )


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
