"""The cores that run one program, and the mesh they form.

Only this module knows how the mesh is laid out.
"""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
from jax.sharding import SingleDeviceSharding

from keras_tpu_estimator.base.topology import Topology
from keras_tpu_estimator.base.types import Nest
from keras_tpu_estimator.mesh.replica_context import ReplicaContext


@dataclasses.dataclass(frozen=True)
class Cores:
    """The cores that run one program, each with its slice of the batch.

    Attributes:
        topology: Their number, and the hosts that feed them.
        mesh: The mesh they form, or `None` for one core.
        axes: The mesh axes that the batch is split over; none for one core.
    """

    topology: Topology
    mesh: jax.sharding.Mesh | None = None
    axes: tuple[str, ...] = ()

    @property
    def context(self) -> ReplicaContext:
        """A fresh context for code of one of these cores."""
        return ReplicaContext(self.topology.num_replicas, self.axes)

    @property
    def axis_sizes(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of the axes, as a tracer wants them."""
        if self.mesh is None:
            return ()
        return tuple((axis, self.mesh.shape[axis]) for axis in self.axes)

    @property
    def platform(self) -> str:
        """What kind of devices they are, such as "cpu"."""
        if self.mesh is None:
            return jax.local_devices()[0].platform
        return self.mesh.devices.flat[0].platform

    def as_one(self) -> "Cores":
        """One core in place of these; what it computes, all of them hold."""
        return dataclasses.replace(self, topology=Topology(1), axes=())

    @property
    def are_on_hosts(self) -> bool:
        """Whether some of them belong to other processes."""
        return self.mesh is not None and self.mesh.is_multi_process

    @property
    def replicated(self) -> jax.sharding.Sharding:
        """The sharding of what every core holds whole, such as weights."""
        if self.mesh is None:
            return _one_device()
        return NamedSharding(self.mesh, PartitionSpec())

    def batch_sharding(self, axis: int = 0) -> jax.sharding.Sharding:
        """The sharding of a tensor whose dimension `axis` is the batch."""
        if self.mesh is None:
            return _one_device()
        return NamedSharding(
            self.mesh, PartitionSpec(*[None] * axis, self.axes)
        )

    def put_whole(self, nest: Nest, sharding: jax.sharding.Sharding) -> Nest:
        """Copies to the devices what every host has whole.

        Args:
            nest: Nest of arrays, equal on all hosts.
            sharding: How they shall lie.
        """
        if not self.are_on_hosts:
            return jax.device_put(nest, sharding)

        def put(leaf: jax.Array | np.ndarray) -> jax.Array:
            if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
                return leaf
            array = np.asarray(leaf)
            return jax.make_array_from_callback(
                array.shape, sharding, array.__getitem__
            )

        return jax.tree.map(put, nest)

    def put_parts(self, nest: Nest, axis: int) -> Nest:
        """Copies to the devices batches of which each host has its cores' part.

        No host sends anything to another.

        Args:
            nest: Nest of arrays of one shape on all hosts.
            axis: Their dimension that is the batch.
        """
        sharding = self.batch_sharding(axis)
        hosts = self.topology.num_hosts

        def put(leaf: np.ndarray) -> jax.Array:
            before, (size, *after) = leaf.shape[:axis], leaf.shape[axis:]
            return jax.make_array_from_process_local_data(
                sharding, leaf, (*before, size * hosts, *after)
            )

        return jax.tree.map(put, nest)

    def whole_on_hosts(self, nest: Nest) -> Nest:
        """Has every host hold the whole of what a compiled function makes."""
        if not self.are_on_hosts:
            return nest
        return jax.lax.with_sharding_constraint(nest, self.replicated)

    def own(self) -> "Cores":
        """Those of this host alone, as if there were no others."""
        if self.mesh is None or not self.are_on_hosts:
            return self
        devices = self.mesh.local_mesh.devices
        if devices.size == 1:
            return ONE_CORE
        mesh = jax.sharding.Mesh(devices, self.mesh.axis_names)
        return Cores(Topology(devices.size), mesh, self.mesh.axis_names)

    def own_copies(
        self, values: Mapping[str, jax.Array]
    ) -> dict[str, jax.Array]:
        """What this host's devices hold of `replicated` arrays, on `own` cores.

        Nothing is copied.

        Args:
            values: Arrays by name.
        """
        if not self.are_on_hosts:
            return dict(values)
        sharding = self.own().replicated

        def view(value: jax.Array) -> jax.Array:
            shards = [shard.data for shard in value.addressable_shards]
            return jax.make_array_from_single_device_arrays(
                value.shape, sharding, shards
            )

        return {name: view(value) for name, value in values.items()}

    def per_core(
        self,
        step: Callable[..., Nest],
        split: tuple[bool, ...],
        outputs_split: Nest,
    ) -> Callable[..., Nest]:
        """Runs `step` on every core with its slice of the arguments.

        Args:
            step: A pure function of nests of arrays.
            split: For each argument, whether its leaves are split over cores
                along their first axis; the others are given whole.
            outputs_split: A prefix of the outputs' nest: whether leaves are
                to be concatenated over cores along their first axis, or are
                the same on all.

        Returns:
            A function of whole arrays.
        """
        if not self.axes:
            return step

        def spec(is_split: bool) -> PartitionSpec:
            return PartitionSpec(self.axes) if is_split else PartitionSpec()

        return jax.shard_map(
            step,
            mesh=self.mesh,
            in_specs=tuple(spec(s) for s in split),
            out_specs=jax.tree.map(spec, outputs_split),
            check_vma=False,
        )

    def core_index(self) -> jax.Array:
        """The number of the core that runs this code, inside `per_core`."""
        if not self.axes:
            return jnp.int32(0)
        return jax.lax.axis_index(self.axes)

    def mean(self, x: jax.Array) -> jax.Array:
        """The mean over the cores, inside `per_core`."""
        return jax.lax.pmean(x, self.axes) if self.axes else x

    def of_first(self, x: jax.Array) -> jax.Array:
        """The first core's value, on all of them, inside `per_core`."""
        if not self.axes:
            return x
        first = self.core_index() == 0
        own = jnp.where(first, x, jnp.zeros_like(x))
        # Booleans are added as integers, and come back as themselves.
        return jax.lax.psum(own, self.axes).astype(own.dtype)


ONE_CORE = Cores(Topology(num_replicas=1))


def all_cores() -> Cores:
    """The cores of the current Keras distribution, or all of the machine's.

    Raises:
        ValueError: The current distribution is not a `DataParallel`.
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        distribution = _over_all_devices()
    if not isinstance(distribution, keras.distribution.DataParallel):
        raise ValueError(
            "Expected keras.distribution.DataParallel as the distribution of "
            f"a TPUEstimator. Received: {distribution}. Set another with "
            "keras.distribution.set_distribution(...), or set None to use "
            "every device."
        )
    mesh = distribution.device_mesh.backend_mesh
    topology = Topology(
        num_replicas=mesh.size,
        num_hosts=jax.process_count(),
        host_index=jax.process_index(),
    )
    if mesh.size == 1:
        return dataclasses.replace(ONE_CORE, topology=topology)
    return Cores(topology, mesh, (distribution.batch_dim_name,))


@functools.cache
def _over_all_devices() -> keras.distribution.DataParallel:
    return keras.distribution.DataParallel(auto_shard_dataset=False)


def _one_device() -> jax.sharding.Sharding:
    return SingleDeviceSharding(jax.local_devices()[0])
