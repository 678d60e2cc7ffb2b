"""Tensors with rows sharded over all cores, and batches that look them up."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.mesh.cores import Cores


def padded_rows(rows: int, sharding: jax.sharding.Sharding) -> int:
    """Returns a number of rows, rounded up to a multiple of the devices."""
    return -(-rows // sharding.num_devices) * sharding.num_devices


@dataclasses.dataclass(frozen=True)
class ShardedRows:
    """Rows that are sharded over all cores, each of which looks up its own rows for the
    batch of all.

    The first core has the first rows. `is_split` means that each replica has its own
    slice of the batch.
    """

    cores: Cores
    is_split: bool

    @property
    def _axes(self) -> tuple[str, ...]:
        """The mesh axes that the batch is split over."""
        return self.cores.axes if self.is_split else ()

    def per_core(
        self, function: Callable[..., PyTree], returns_rows: bool
    ) -> Callable[..., PyTree]:
        """Returns a function of global arrays that runs a function on every core.

        The given function has three pytrees as arguments: rows, slices of the batch,
        and replicated values. It returns a pytree of rows, or else of slices.
        """
        if self.cores.mesh is None:
            return function
        rows = PartitionSpec(self.cores.mesh.axis_names)
        batch = PartitionSpec(self._axes) if self._axes else PartitionSpec()
        return jax.shard_map(
            function,
            mesh=self.cores.mesh,
            in_specs=(rows, batch, PartitionSpec()),
            out_specs=rows if returns_rows else batch,
            check_vma=False,
        )

    def with_all_rows(self, rows: jax.Array | np.ndarray) -> jax.Array:
        """Returns rows, padded with zeros to the same number on each core."""
        sharding = self.cores.rows_sharding
        more = padded_rows(len(rows), sharding) - len(rows)
        rows = jnp.asarray(rows)
        return jnp.pad(rows, ((0, more), (0, 0))) if more else rows

    def of_all(self, slices: PyTree) -> PyTree:
        """Gathers the complete batch from the slices of all cores."""
        if not self._axes:
            return slices
        return jax.lax.all_gather(slices, self._axes, tiled=True)

    def own_sum(self, x: jax.Array) -> jax.Array:
        """Returns this core's slice of the sum of all cores' `[batch, ...]` tensors."""
        mesh = self.cores.mesh
        if mesh is None:
            return x
        further_axes = tuple(a for a in mesh.axis_names if a not in self._axes)
        if further_axes:
            x = jax.lax.psum(x, further_axes)
        if self._axes:
            x = jax.lax.psum_scatter(x, self._axes, tiled=True)
        return x

    def own_numbers(self, numbers: jax.Array, rows: int) -> jax.Array:
        """Returns local row numbers; `rows` for rows of other cores.

        Args:
            numbers: Global row numbers; negative ones belong to no core.
            rows: The number of rows of each core.
        """
        mesh = self.cores.mesh
        core = 0 if mesh is None else jax.lax.axis_index(mesh.axis_names)
        local = numbers - core * rows
        return jnp.where((local >= 0) & (local < rows) & (numbers >= 0), local, rows)
