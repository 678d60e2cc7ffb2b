"""The cores of this host, and their copies of variables."""

import dataclasses
import math
from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.base.common.topology import Topology
from keras_tpu_estimator.base.mesh.cores import ONE_CORE, Cores


def own_cores(cores: Cores) -> Cores:
    """Returns the cores of this host, as if there were no other hosts."""
    if cores.mesh is None or not cores.are_on_hosts:
        return cores
    devices = _of_host(cores.mesh.devices, cores.topology.host_index)
    for device, other in cores.substitutes:
        devices = np.where(devices == device, other, devices)
    if devices.size == 1:
        return dataclasses.replace(ONE_CORE, device=devices.flat[0])
    mesh = jax.sharding.Mesh(devices, cores.mesh.axis_names, cores.mesh.axis_types)
    per_replica = cores.topology.of_lone_hosts.cores_per_replica
    topology = Topology(devices.size // per_replica, cores_per_replica=per_replica)
    axes = cores.axes if topology.num_replicas > 1 else ()
    layout = cores.layout and cores.layout.over(mesh.shape, per_replica)
    return Cores(
        topology,
        mesh,
        axes=axes,
        model_axes=cores.model_axes,
        layout=layout,
    )


def own_copies(cores: Cores, values: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the variables that this host's devices hold completely.

    The arrays share the buffers of `values`. Variables that are sharded over
    several hosts are omitted.
    """
    own = own_cores(cores)
    if not cores.are_on_hosts:
        return dict(values)

    def view(value: jax.Array) -> jax.Array | None:
        if value.is_fully_addressable:
            return value
        if not _is_whole_here(value):
            return None
        sharding = (
            own.replicated
            if own.mesh is None
            else NamedSharding(own.mesh, _spec_of(value))
        )
        shards = [shard.data for shard in value.addressable_shards]
        return jax.make_array_from_single_device_arrays(value.shape, sharding, shards)

    views = {name: view(value) for name, value in values.items()}
    return {n: value for n, value in views.items() if value is not None}


def _of_host(devices: np.ndarray, host: int) -> np.ndarray:
    """Returns the adjacent devices of one process in a mesh."""
    is_own = np.vectorize(lambda d: d.process_index == host, otypes=[bool])
    places = np.nonzero(is_own(devices))
    own: np.ndarray = devices[np.ix_(*map(np.unique, places))]
    if own.size != len(places[0]):
        raise ValueError(
            "The devices of a host should lie side by side in the mesh. "
            f"Received {len(places[0])} of host {host} among {own.size}. Set "
            "a keras.distribution whose devices are in their order, or none."
        )
    return own


def _is_whole_here(value: jax.Array) -> bool:
    """Returns whether this host has all elements of an array."""
    shape = value.shape
    boxes = {IndexRanges.of(each.index, shape) for each in value.addressable_shards}
    return sum(math.prod(box.shape) for box in boxes) == value.size


def _spec_of(value: jax.Array) -> PartitionSpec:
    if not isinstance(value.sharding, NamedSharding):
        raise TypeError(f"An array must be sharded over a mesh. Received: {value}")
    return value.sharding.spec
