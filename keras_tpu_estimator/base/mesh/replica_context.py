"""One core's code during tracing: its context, reductions and sharded variables."""

import contextlib
import contextvars
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from keras_tpu_estimator.base.common.types import PyTree

Groups = Sequence[Sequence[int]]
ReduceDtype = Literal["bfloat16", "float32"]

# The sides of the tiles in which TPUs store two dimensions of an array.
_SUBLANES, _LANES = 8, 128


def check_groups(groups: Any) -> None:
    """Checks that groups have equal sizes and contain each replica number once."""
    expected = "`group_assignment` must be a list of lists of replica numbers"
    if not _are_lists(groups):
        raise ValueError(
            f"{expected}. Received: {groups!r}. Omit it for one group of all replicas."
        )
    if len({len(group) for group in groups}) > 1:
        raise ValueError(
            f"{expected}, all of one size. Received: {groups!r}, of sizes "
            f"{[len(group) for group in groups]}. Make the sizes equal."
        )
    numbers = sorted(number for group in groups for number in group)
    if numbers != list(range(len(numbers))):
        raise ValueError(
            f"{expected}, each of them once, from 0 on. Received: {groups!r}. "
            "Add missing numbers, and remove repeated ones."
        )


def check_partition(groups: Groups | None, num_replicas: int) -> None:
    """Checks that groups contain all replicas, if there are several to reduce over."""
    if groups is None or num_replicas == 1:
        return
    count = sum(len(group) for group in groups)
    if count != num_replicas:
        raise ValueError(
            f"`group_assignment` must contain all {num_replicas} replicas. "
            f"Received: {groups!r}, with {count} replicas. Omit it for one group "
            "of all replicas."
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
    tree: PyTree,
    axes: Sequence[str],
    groups: Groups | None = None,
    dtype: jax.typing.DTypeLike | None = None,
) -> PyTree:
    """Returns sums over axes of the current `shard_map`; counts true booleans.

    Args:
        groups: Groups of cores with separate sums. Defaults to one group.
        dtype: The dtype in which floats are summed. Defaults to at least float32,
            because a sum may overflow float16.
    """
    return _reduced(jax.lax.psum, tree, axes, groups, dtype)


def mean_over(
    tree: PyTree,
    axes: Sequence[str],
    groups: Groups | None = None,
    dtype: jax.typing.DTypeLike | None = None,
) -> PyTree:
    """Returns means over axes, with arguments as in `sum_over`."""
    return _reduced(jax.lax.pmean, tree, axes, groups, dtype)


def _reduced(
    reduction: Callable[..., jax.Array],
    tree: PyTree,
    axes: Sequence[str],
    groups: Groups | None,
    dtype: jax.typing.DTypeLike | None,
) -> PyTree:
    def one(leaf: jax.Array) -> jax.Array:
        stored = jnp.asarray(leaf).dtype
        if not jnp.issubdtype(stored, jnp.inexact):
            return reduction(leaf, axes, axis_index_groups=groups)
        is_real = jnp.issubdtype(stored, jnp.floating)
        wide = (dtype if is_real else None) or jnp.promote_types(stored, jnp.float32)
        reduced = reduction(jnp.asarray(leaf, wide), axes, axis_index_groups=groups)
        return reduced.astype(stored)

    return jax.tree.map(one, tree)


@dataclasses.dataclass(frozen=True)
class ReplicaContext:
    """The context of one core's code during tracing; one replica has no mesh axes."""

    num_replicas: int
    axes: tuple[str, ...]
    platform: str = "cpu"


_ONE_REPLICA = ReplicaContext(num_replicas=1, axes=())
_context: contextvars.ContextVar[ReplicaContext] = contextvars.ContextVar(
    "replica_context", default=_ONE_REPLICA
)


def replica_context() -> ReplicaContext:
    """Returns the context of the code that this thread traces."""
    return _context.get()


@contextlib.contextmanager
def replica_scope(context: ReplicaContext) -> Iterator[ReplicaContext]:
    """Makes `context` the current one in a `with` block."""
    token = _context.set(context)
    try:
        yield context
    finally:
        _context.reset(token)


def cross_replica_sum(x: PyTree, name: str | None = None) -> PyTree:
    """Sums a tensor, or each tensor of a pytree, over all cores.

    For use in a `model_fn`, as `tf.compat.v1.tpu.cross_replica_sum`. On one
    core it returns `x`.

    Args:
        x: A tensor of any shape, or a pytree of tensors.
        name: Accepted for compatibility. Defaults to `None`.

    Returns:
        A pytree like `x`, with the same values on every core.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> float(kte.cross_replica_sum(2.0))  # One core outside a model_fn.
    2.0
    """
    del name
    return sum_in_groups(x, None)


def cross_replica_mean(x: PyTree, name: str | None = None) -> PyTree:
    """Averages a tensor, or each tensor of a pytree, over all cores.

    For use in a `model_fn`. On one core it returns `x`.

    Args:
        x: A tensor of any shape, or a pytree of tensors.
        name: Accepted for compatibility. Defaults to `None`.

    Returns:
        A pytree like `x`, with the same values on every core.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> float(kte.cross_replica_mean(2.0))  # One core outside a model_fn.
    2.0
    """
    del name
    return mean_in_groups(x, None)


def sum_in_groups(
    x: PyTree,
    groups: Groups | None,
    dtype: jax.typing.DTypeLike | None = None,
) -> PyTree:
    """Sums tensors over the cores of each group, with a dtype as in `sum_over`."""
    context = replica_context()
    if not context.axes:
        return x
    return sum_over(x, context.axes, groups, dtype_of_sum(dtype, context.platform))


def mean_in_groups(
    x: PyTree,
    groups: Groups | None,
    dtype: jax.typing.DTypeLike | None = None,
) -> PyTree:
    """Averages tensors over the cores of each group, with a dtype as in `mean_over`."""
    context = replica_context()
    if not context.axes:
        return x
    return mean_over(x, context.axes, groups, dtype_of_sum(dtype, context.platform))


_default_reduce_dtype: contextvars.ContextVar[ReduceDtype | None] = (
    contextvars.ContextVar("reduce_dtype", default=None)
)


@contextlib.contextmanager
def combining_in(dtype: ReduceDtype | None) -> Iterator[None]:
    """Sets the dtype in which gradients are combined by default in a `with` block."""
    token = _default_reduce_dtype.set(dtype)
    try:
        yield
    finally:
        _default_reduce_dtype.reset(token)


def combined_in(dtype: ReduceDtype | None) -> ReduceDtype | None:
    """Returns a dtype in which gradients are combined, or the default for `None`."""
    return _default_reduce_dtype.get() if dtype is None else dtype


def dtype_of_sum(
    dtype: jax.typing.DTypeLike | None, platform: str
) -> jax.typing.DTypeLike | None:
    """Returns the dtype of a sum, if the platform can sum in it."""
    # On CPUs, XLA aborts when it sums bfloat16 over some axes of a mesh. A sum
    # may overflow float16.
    is_summable = platform != "cpu" and dtype != "float16"
    return dtype if is_summable else None


# The sharding of variables over the replicas, by path; `False` if replicated.
Specs: TypeAlias = Mapping[str, PartitionSpec | bool]


@dataclasses.dataclass(frozen=True)
class ReplicaShards:
    """A variable of which each replica stores a shard: it gathers the shards where the
    variable is read, and receives its shard of the summed gradient.

    Attributes:
        dimension: The dimension of the variable that is split over the replicas.
        dtype: The dtype in which gradients are summed; `None` for at least float32.
        in_two: Whether gradients are scattered first over every second replica, and
            then over pairs.
        slices: The axes of TPU slices, each of which has all shards. Only sums of
            shards cross the slow network between slices.
    """

    axes: tuple[str, ...]
    dimension: int
    dtype: jax.typing.DTypeLike | None = None
    in_two: bool = False
    slices: tuple[str, ...] = ()

    @property
    def spec(self) -> PartitionSpec:
        """The split dimension, for `shard_map`."""
        return PartitionSpec(*[None] * self.dimension, self.axes)

    def gather(
        self, shard: jax.Array, dtype: jax.typing.DTypeLike | None = None
    ) -> jax.Array:
        """Gathers the variable from shards. Its gradient is summed and scattered.

        The variable is gathered in `dtype`, a narrower dtype in which it is used.
        """
        if not jnp.issubdtype(shard.dtype, jnp.inexact):
            return self._gathered(shard)

        @jax.custom_vjp
        def gather(shard: jax.Array) -> jax.Array:
            return self._gathered(shard.astype(dtype or shard.dtype)).astype(
                shard.dtype
            )

        gather.defvjp(
            lambda shard: (gather(shard), None),
            lambda _, gradient: (self.summed(gradient),),
        )
        return gather(shard)

    def summed(self, gradient: jax.Array) -> jax.Array:
        """Returns this replica's shard of the sum over all replicas."""
        stored = gradient.dtype
        wide = self.dtype or jnp.promote_types(stored, jnp.float32)
        gradient = gradient.astype(wide)
        if self._are_stacked(gradient.shape):
            count = jax.lax.axis_size(self.axes)
            stacked = gradient.reshape(count, -1, *gradient.shape[1:])
            shard = self._scattered(stacked, 0)[0]
        else:
            shard = self._scattered(gradient, self.dimension)
        if wide != stored:
            # XLA for TPUs would move the scatter out of a loop over micro-batches, and
            # fails at the conversion.
            shard = jax.lax.optimization_barrier(shard)
        return shard.astype(stored)

    def _are_stacked(self, shape: tuple[int, ...]) -> bool:
        """Returns whether the shards are stacked along a new dimension to scatter them.

        XLA replaces a scatter by an all-reduce if the split dimension is stored along
        the lanes of tiles, and shards do not fill the lanes. It does not store the new
        dimension in tiles.
        """
        if not self.in_two or self.dimension != 0 or len(shape) < 2:
            return False
        size = shape[0] // jax.lax.axis_size(self.axes)
        return size % _LANES != 0 and _dimension_of_lanes((size, *shape[1:])) == 0

    def _scattered(self, x: jax.Array, dimension: int) -> jax.Array:
        """Returns this replica's part of the sum of `x`, split along a dimension."""
        for groups in self._groups():
            x = jax.lax.psum_scatter(
                x,
                self.axes,
                scatter_dimension=dimension,
                axis_index_groups=groups,
                tiled=True,
            )
        return jax.lax.psum(x, self.slices) if self.slices else x

    def _groups(self) -> list[list[list[int]] | None]:
        """Returns the groups of replicas of each scatter, `None` for one group."""
        if not self.in_two:
            return [None]
        count = jax.lax.axis_size(self.axes)
        numbers = range(count)
        # The order keeps the shards in the order of the replicas.
        halves = [list(numbers[start::2]) for start in range(2)]
        pairs = [list(numbers[start : start + 2]) for start in numbers[::2]]
        return [halves, pairs]

    def own_shard(self, value: jax.Array) -> jax.Array:
        """Returns this replica's shard of a value that is equal on all."""
        size = value.shape[self.dimension] // jax.lax.axis_size(self.axes)
        start = jax.lax.axis_index(self.axes) * size
        return jax.lax.dynamic_slice_in_dim(value, start, size, self.dimension)

    def _gathered(self, shard: jax.Array) -> jax.Array:
        return jax.lax.all_gather(shard, self.axes, axis=self.dimension, tiled=True)


def _dimension_of_lanes(shape: tuple[int, ...]) -> int:
    """Returns the dimension along the lanes in the layout with the least padding.

    XLA for TPUs usually chooses this layout. If several have the same padding, this is
    the first dimension that can be along the lanes.
    """

    def padded(sides: tuple[int, int]) -> int:
        sizes = list(shape)
        for side, tile in zip(sides, (_LANES, _SUBLANES), strict=True):
            sizes[side] += -sizes[side] % tile
        return math.prod(sizes)

    sides = itertools.permutations(range(len(shape)), 2)
    return min(sides, key=padded)[0]


def gathered_variables(
    shards: Mapping[str, ReplicaShards],
    values: Mapping[str, jax.Array],
    paths: Iterable[str],
) -> dict[str, jax.Array]:
    """Returns the variables at these paths, and gathers those that are shards."""
    return {
        path: shards[path].gather(values[path]) if path in shards else values[path]
        for path in paths
    }


def own_of(
    shards: Mapping[str, ReplicaShards], values: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """Returns variables that are equal on all replicas, or this one's shards."""
    return {
        path: shards[path].own_shard(value) if path in shards else value
        for path, value in values.items()
    }


def specs_of(shards: Mapping[str, ReplicaShards], paths: Iterable[str]) -> Specs | None:
    """Returns the sharding of variables by path; `None` if all are replicated."""
    if not shards:
        return None
    return {path: shards[path].spec if path in shards else False for path in paths}
