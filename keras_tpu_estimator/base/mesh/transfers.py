"""Transfers of arrays from the host to the cores, and shared buffers."""

import collections
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.mesh.cores import Cores


def put_whole(cores: Cores, tree: PyTree, sharding: jax.sharding.Sharding) -> PyTree:
    """Copies arrays that are equal on all hosts to the devices."""
    if not cores.are_on_hosts:
        return jax.device_put(tree, sharding)

    def put(leaf: jax.Array | np.ndarray) -> jax.Array:
        if isinstance(leaf, jax.Array):
            if leaf.sharding == sharding:
                return leaf
            if not leaf.is_fully_replicated and not (leaf.is_fully_addressable):
                # This is collective: all hosts have called it.
                return jax.jit(jnp.copy, out_shardings=sharding)(leaf)
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    return jax.tree.map(put, tree)


def put_by_part(
    shape: tuple[int, ...],
    sharding: jax.sharding.Sharding,
    part: Callable[[IndexRanges], np.ndarray],
) -> jax.Array:
    """Makes an array from each core's part, with at most one of them on the host."""
    devices = collections.defaultdict(list)
    indices = sharding.addressable_devices_indices_map(shape)
    for device, index in indices.items():
        devices[IndexRanges.from_slices(index or (), shape)].append(device)
    arrays = []
    for box, box_devices in devices.items():
        value = part(box)
        put = [jax.device_put(value, device) for device in box_devices]
        arrays += jax.block_until_ready(put)
    return jax.make_array_from_single_device_arrays(shape, sharding, arrays)


def put_parts(cores: Cores, tree: PyTree, axis: int) -> PyTree:
    """Copies each host's part of a batch to its devices.

    The arrays have equal shapes on all hosts, and the batch is the dimension `axis`.
    """
    sharding = cores.batch_sharding(axis)
    hosts = cores.topology.num_readers

    def put(leaf: np.ndarray) -> jax.Array:
        before, (size, *after) = leaf.shape[:axis], leaf.shape[axis:]
        return jax.make_array_from_process_local_data(
            sharding, leaf, (*before, size * hosts, *after)
        )

    return jax.tree.map(put, tree)


def alias(value: jax.Array) -> jax.Array:
    """Returns another array with the same buffers.

    JAX caches a fetched value in the array until the array is deleted. Fetch the value
    from an alias to free this memory.
    """
    parts = [
        jax.make_array_from_single_device_arrays(
            shard.data.shape, shard.data.sharding, [shard.data]
        )
        for shard in value.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(value.shape, value.sharding, parts)


def without_padding(
    cores: Cores,
    parts: Sequence[jax.Array],
    sizes: Sequence[int],
    axis: int,
    sharding: jax.sharding.Sharding,
) -> list[jax.Array]:
    """Removes padding from the parts of a batch, and distributes it evenly.

    The devices of all hosts exchange rows, so that all hosts must call this between the
    same device programs. `put_parts` has made the arrays of padded parts, and `sizes`
    are the numbers of rows of the hosts.
    """
    if not parts:
        return []
    room = parts[0].shape[axis] // len(sizes)
    rows = np.concatenate(
        [host * room + np.arange(size) for host, size in enumerate(sizes)]
    )
    return _take_rows(parts, rows.astype("int32"), axis, cores.replicated, sharding)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _take_rows(
    arrays: Sequence[jax.Array],
    rows: jax.Array,
    axis: int,
    replicated: jax.sharding.Sharding,
    sharding: jax.sharding.Sharding,
) -> list[jax.Array]:
    """Returns some rows of arrays that are sharded over all devices."""
    # Otherwise XLA may add up the rows of all devices, which changes -0.0.
    replicas = [jax.lax.with_sharding_constraint(array, replicated) for array in arrays]
    return [
        jax.lax.with_sharding_constraint(jnp.take(array, rows, axis), sharding)
        for array in replicas
    ]
