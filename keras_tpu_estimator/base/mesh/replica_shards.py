"""Variables that are sharded over the replicas, as one replica uses them."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

# The sharding of variables over the replicas, by path; `False` if replicated.
Specs: TypeAlias = Mapping[str, PartitionSpec | bool]


@dataclasses.dataclass(frozen=True)
class ReplicaShards:
    """The shards of one variable, for the code of one replica.

    Attributes:
        axes: The mesh axes of the replicas.
        dimension: The dimension of the variable that is split over them.
        dtype: The dtype in which gradients are summed. Defaults to `None`, for
            at least float32.
    """

    axes: tuple[str, ...]
    dimension: int
    dtype: jax.typing.DTypeLike | None = None

    @property
    def spec(self) -> PartitionSpec:
        """The split dimension, for `shard_map`."""
        return PartitionSpec(*[None] * self.dimension, self.axes)

    def whole(
        self, shard: jax.Array, dtype: jax.typing.DTypeLike | None = None
    ) -> jax.Array:
        """Gathers the variable. Its gradient is summed and scattered.

        Args:
            shard: This replica's shard.
            dtype: A narrower dtype in which the variable is used, and therefore
                gathered. Defaults to its own.
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
        own = gradient.dtype
        wide = self.dtype or jnp.promote_types(own, jnp.float32)
        return jax.lax.psum_scatter(
            gradient.astype(wide),
            self.axes,
            scatter_dimension=self.dimension,
            tiled=True,
        ).astype(own)

    def own(self, value: jax.Array) -> jax.Array:
        """Returns this replica's shard of a value that is equal on all."""
        size = value.shape[self.dimension] // jax.lax.axis_size(self.axes)
        start = jax.lax.axis_index(self.axes) * size
        return jax.lax.dynamic_slice_in_dim(value, start, size, self.dimension)

    def _gathered(self, shard: jax.Array) -> jax.Array:
        return jax.lax.all_gather(shard, self.axes, axis=self.dimension, tiled=True)


def whole_of(
    shards: Mapping[str, ReplicaShards],
    values: Mapping[str, jax.Array],
    paths: Iterable[str],
) -> dict[str, jax.Array]:
    """Returns some variables, of which those that are shards are gathered.

    Args:
        shards: The variables that may be shards, by path.
        values: The values of variables by path.
        paths: The paths of the variables to return.
    """
    return {
        path: shards[path].whole(values[path]) if path in shards else values[path]
        for path in paths
    }


def own_of(
    shards: Mapping[str, ReplicaShards], values: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """Returns variables that are equal on all replicas, or this one's shards."""
    return {
        path: shards[path].own(value) if path in shards else value
        for path, value in values.items()
    }


def specs_of(shards: Mapping[str, ReplicaShards], paths: Iterable[str]) -> Specs | None:
    """Returns the sharding of variables by path; `None` if all are replicated."""
    if not shards:
        return None
    return {path: shards[path].spec if path in shards else False for path in paths}
