"""Arrays of the host on their way to the cores."""

import collections
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.ground.base.index_ranges import IndexRanges
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.mesh.cores import Cores


def put_whole(
    cores: Cores, nest: Nest, sharding: jax.sharding.Sharding
) -> Nest:
    """Copies to the devices what every host has whole.

    Args:
        nest: Nest of arrays, equal on all hosts.
    """
    if not cores.are_on_hosts:
        return jax.device_put(nest, sharding)

    def put(leaf: jax.Array | np.ndarray) -> jax.Array:
        if isinstance(leaf, jax.Array):
            if leaf.sharding == sharding:
                return leaf
            if not leaf.is_fully_replicated and not (leaf.is_fully_addressable):
                # All hosts have called this.
                return jax.jit(jnp.copy, out_shardings=sharding)(leaf)
        array = np.asarray(leaf)
        return jax.make_array_from_callback(
            array.shape, sharding, array.__getitem__
        )

    return jax.tree.map(put, nest)


def put_by_part(
    shape: tuple[int, ...],
    sharding: jax.sharding.Sharding,
    part: Callable[[IndexRanges], np.ndarray],
) -> jax.Array:
    """Makes an array of parts, of which no more than one is on the host.

    Args:
        shape: Its shape.
        part: Gives what a core is to have.
    """
    devices = collections.defaultdict(list)
    places = sharding.addressable_devices_indices_map(shape)
    for device, index in places.items():
        devices[IndexRanges.of(index or (), shape)].append(device)
    arrays = []
    for box, own in devices.items():
        value = part(box)
        put = [jax.device_put(value, device) for device in own]
        arrays += jax.block_until_ready(put)
    return jax.make_array_from_single_device_arrays(shape, sharding, arrays)


def put_parts(cores: Cores, nest: Nest, axis: int) -> Nest:
    """Copies to the devices batches of which each host has its cores' part.

    No host sends anything to another.

    Args:
        nest: Nest of arrays of one shape on all hosts.
        axis: Their dimension that is the batch.
    """
    sharding = cores.batch_sharding(axis)
    hosts = cores.topology.num_readers

    def put(leaf: np.ndarray) -> jax.Array:
        before, (size, *after) = leaf.shape[:axis], leaf.shape[axis:]
        return jax.make_array_from_process_local_data(
            sharding, leaf, (*before, size * hosts, *after)
        )

    return jax.tree.map(put, nest)
