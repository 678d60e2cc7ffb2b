"""The cores that run one program, and their mesh."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.base.common.topology import Topology
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.mesh import replica_context
from keras_tpu_estimator.base.mesh.replica_context import (
    ReplicaContext,
    ReplicaShards,
    mean_over,
    sum_over,
)
from keras_tpu_estimator.base.mesh.variable_layout import VariableLayout

# With fewer replicas, XLA also replaces two scatters.
_LEAST_IN_TWO = 16


@dataclasses.dataclass(frozen=True)
class Cores:
    """The cores that run one program, each with its slice of the batch.

    The cores of one replica share a slice: variables are sharded over them,
    and XLA partitions the computation.

    Attributes:
        topology: The number of replicas, and the hosts that feed them.
        mesh: The mesh of the cores; `None` for one core.
        device: The device of one core; `None` for this process's first device.
        axes: The mesh axes that the batch is split over, that of slices first; none for
            one replica.
        model_axes: The mesh axes of the cores of a replica; none for one core.
        layout: The sharding of variables over the cores of a replica; `None`
            if each core has complete variables.
        substitutes: Pairs of a device of this process and its replacement, as in
            `Machine`.
    """

    topology: Topology
    mesh: jax.sharding.Mesh | None = None
    device: jax.Device | None = None
    axes: tuple[str, ...] = ()
    model_axes: tuple[str, ...] = ()
    layout: VariableLayout | None = None
    substitutes: tuple[tuple[jax.Device, jax.Device], ...] = ()

    @property
    def context(self) -> ReplicaContext:
        """A new context for the code of one core."""
        return ReplicaContext(self.topology.num_replicas, self.axes, self.platform)

    @property
    def axis_sizes(self) -> tuple[tuple[str, int], ...]:
        """The names and sizes of the batch axes."""
        if self.mesh is None:
            return ()
        return tuple((axis, self.mesh.shape[axis]) for axis in self.axes)

    @property
    def platform(self) -> str:
        """The kind of the devices, such as "cpu"."""
        return self._first.platform

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The devices, in the order of the mesh."""
        if self.mesh is not None:
            return tuple(self.mesh.devices.flat)
        return (self.device or Machine.from_jax().first,)

    @property
    def _first(self) -> jax.Device:
        return self.devices[0]

    @property
    def are_known(self) -> bool:
        """Whether a program runs only on these cores; an export may run anywhere."""
        return self.mesh is not None or self.device is not None

    def as_one(self) -> "Cores":
        """Returns the same cores as one replica, which all hold its results."""
        topology = Topology(1, cores_per_replica=self.topology.cores_per_replica)
        return dataclasses.replace(self, topology=topology, axes=())

    @property
    def shards_optimizer(self) -> bool:
        """Whether the optimizer state is sharded over the replicas."""
        layout = self.layout
        are_shared = layout is not None and (
            layout.optimizer_is_sharded or layout.is_fsdp
        )
        return bool(self.axes) and are_shared

    def shards(self, variables: Mapping[str, Any]) -> dict[str, ReplicaShards]:
        """Returns the shards of the variables that are sharded over replicas.

        Args:
            variables: Objects with a shape and a dtype, by path.
        """
        layout = self.layout
        if layout is None or not layout.is_fsdp or not self.axes:
            return {}
        name, _ = layout.replicas
        shards = {}
        for path, variable in variables.items():
            axes = layout.axes(path, tuple(variable.shape))
            if name in axes:
                dtype = replica_context.dtype_of_sum(variable.dtype, self.platform)
                shards[path] = ReplicaShards(
                    (name,),
                    axes.index(name),
                    dtype,
                    self._scatter_in_two,
                    tuple(axis for axis in self.axes if axis != name),
                )
        return shards

    @property
    def _scatter_in_two(self) -> bool:
        """Whether XLA would replace a scatter over all replicas by an all-reduce.

        It does so on TPU slices such as v5e:4x4 and v5p:4x4x4, and sends twice as much.
        It keeps two scatters, over half of the replicas and over pairs.
        """
        _, replicas = self.axis_sizes[-1]
        return (
            self.platform == "tpu" and replicas >= _LEAST_IN_TWO and replicas % 2 == 0
        )

    @property
    def are_on_hosts(self) -> bool:
        """Whether some cores belong to other processes."""
        return self.mesh is not None and len(hosts_of(self.mesh)) > 1

    @property
    def replicated(self) -> jax.sharding.Sharding:
        """The sharding of replicated values, such as weights."""
        if self.mesh is None:
            return SingleDeviceSharding(self._first)
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def rows_sharding(self) -> jax.sharding.Sharding:
        """The sharding of rows over all cores, as for embedding tables."""
        if self.mesh is None:
            return SingleDeviceSharding(self._first)
        return NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names))

    def batch_sharding(self, axis: int = 0) -> jax.sharding.Sharding:
        """Returns the sharding of a tensor with the batch in dimension `axis`."""
        if self.mesh is None:
            return SingleDeviceSharding(self._first)
        return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, self.axes))

    def whole_on_hosts(self, tree: PyTree) -> PyTree:
        """Replicates the results of a compiled function on all hosts."""
        if not self.are_on_hosts:
            return tree
        return jax.lax.with_sharding_constraint(tree, self.replicated)

    @property
    def need_others(self) -> bool:
        """Whether some values are sharded over hosts, so that none has all."""
        is_unbatched = self.shards_optimizer or self.topology.hosts_per_replica > 1
        return self.are_on_hosts and is_unbatched

    def variable_sharding(
        self, path: str, shape: tuple[int, ...], owner: str | None = None
    ) -> jax.sharding.Sharding:
        """Returns the sharding of a variable.

        Args:
            path: The path of the variable.
            shape: The shape of the variable.
            owner: For optimizer state, the path of its variable.
        """
        if self.mesh is None or self.layout is None:
            return self.replicated
        axes = self.layout.axes(path, shape, owner)
        return NamedSharding(self.mesh, PartitionSpec(*map(self._mesh_axes, axes)))

    def like_variable(self, gradient: jax.Array, path: str) -> jax.Array:
        """Shards a gradient like its variable, inside `per_core`.

        Otherwise XLA may shard an update that each core needs completely, and
        then gather the new variable and its optimizer state.
        """
        if self.layout is None or self.shards_optimizer:
            return gradient
        axes = self.layout.axes(path, gradient.shape)
        return self._laid(gradient, map(self._mesh_axes, axes))

    def like_slot(self, x: jax.Array, path: str) -> jax.Array:
        """Shards a variable or gradient like its optimizer state.

        Otherwise XLA may make each replica compute the complete update.

        Args:
            x: A replicated value, outside of `per_core`.
            path: The path of the variable.
        """
        if not self.shards_optimizer:
            return x
        sharding = self.variable_sharding(path, x.shape, owner=path)
        return jax.lax.with_sharding_constraint(x, sharding)

    def gathered(self, value: jax.Array, path: str) -> jax.Array:
        """Gathers a variable that was updated in shards.

        Args:
            value: The value of the variable, outside of `per_core`.
            path: The path of the variable.
        """
        if not self.shards_optimizer:
            return value
        return jax.lax.with_sharding_constraint(
            self.like_slot(value, path),
            self.variable_sharding(path, value.shape),
        )

    def _laid(
        self, x: jax.Array, axes: Iterable[str | tuple[str, ...] | None]
    ) -> jax.Array:
        """Shards a tensor over the cores of a replica, inside `per_core`."""
        if self.mesh is None:
            return x
        # Inside `per_core`, JAX has a mesh whose batch axes are manual.
        mesh = jax.sharding.get_abstract_mesh() if self.axes else self.mesh
        return jax.lax.with_sharding_constraint(
            x, NamedSharding(mesh, PartitionSpec(*axes))
        )

    def _mesh_axes(self, axis: str | None) -> str | tuple[str, ...] | None:
        """Returns the mesh axes for an axis of a layout."""
        is_of_mesh = self.mesh is None or axis in self.mesh.axis_names
        return axis if axis is None or is_of_mesh else self.model_axes

    def cut(self, x: jax.Array, counts: Sequence[int]) -> jax.Array:
        """Splits a tensor over the cores of a replica, inside `per_core`.

        The sizes need not be divisible.

        Args:
            x: The tensor, which each core has completely.
            counts: The number of parts of each dimension. Their product is 1
                or the number of cores.

        Raises:
            ValueError: The axes of the cores do not allow these numbers.
        """
        if self.mesh is None:
            return x
        free_axes = list(self.model_axes)
        spec = []
        for count in counts:
            used_axes: list[str] = []
            size = 1
            while size < count and free_axes:
                used_axes.append(free_axes.pop(0))
                size *= self.mesh.shape[used_axes[-1]]
            if size != count:
                shape = {a: self.mesh.shape[a] for a in self.model_axes}
                raise ValueError(
                    f"Shards of {list(counts)} must be made of complete axes of "
                    "the keras.distribution that is set, in their order. "
                    f"Received the axes {shape}. Unset it, and set "
                    "only num_cores_per_replica."
                )
            spec.append(tuple(used_axes) or None)
        return self._laid(x, spec)

    def per_core(
        self,
        step: Callable[..., PyTree],
        split: tuple[PyTree, ...],
        outputs_split: PyTree,
    ) -> Callable[..., PyTree]:
        """Runs `step` on every core with its slice of the arguments.

        Args:
            step: A pure function of pytrees of arrays.
            split: For each argument, a prefix of its pytree: whether leaves
                are split over cores along their first axis, or replicated; or
                a `PartitionSpec`.
            outputs_split: A prefix of the output pytree: whether leaves are
                concatenated over cores along their first axis, or equal on
                all cores; or a `PartitionSpec`.

        Returns:
            A function of global arrays.
        """
        if not self.axes:
            return step

        def spec(is_split: bool | PartitionSpec) -> PartitionSpec:
            if isinstance(is_split, PartitionSpec):
                return is_split
            return PartitionSpec(self.axes) if is_split else PartitionSpec()

        return jax.shard_map(
            step,
            mesh=self.mesh,
            # XLA partitions the computation over the cores of a replica.
            axis_names=set(self.axes),
            in_specs=jax.tree.map(spec, split, is_leaf=_is_spec),
            out_specs=jax.tree.map(spec, outputs_split, is_leaf=_is_spec),
            check_vma=False,
        )

    def core_index(self) -> jax.Array:
        """Returns the number of the current core, inside `per_core`."""
        if not self.axes:
            return jnp.int32(0)
        return jax.lax.axis_index(self.axes)

    def mean(self, x: jax.Array) -> jax.Array:
        """Returns the mean over cores, inside `per_core`; floats for integers."""
        return mean_over(x, self.axes) if self.axes else x

    def sum(self, x: jax.Array) -> jax.Array:
        """Returns the sum over cores, inside `per_core`; integers for booleans."""
        return sum_over(x, self.axes) if self.axes else x

    def of_first(self, x: jax.Array) -> jax.Array:
        """Returns the first core's value on all cores, inside `per_core`."""
        if not self.axes:
            return x
        # The other cores add zeros, so that the sum is the value of the first one.
        first = self.core_index() == 0
        masked = jnp.where(first, x, jnp.zeros_like(x))
        # Booleans are summed as integers, and cast back.
        return sum_over(masked, self.axes).astype(masked.dtype)


ONE_CORE = Cores(Topology(num_replicas=1))


def _is_spec(node: object) -> bool:
    return isinstance(node, PartitionSpec)


def hosts_of(mesh: jax.sharding.Mesh) -> set[int]:
    """Returns the numbers of the processes of a mesh's devices."""
    return {device.process_index for device in mesh.devices.flat}


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

    The arrays share the buffers of `values`. Variables that are sharded over several
    hosts are omitted.
    """
    host_cores = own_cores(cores)
    if not cores.are_on_hosts:
        return dict(values)

    def view(value: jax.Array) -> jax.Array | None:
        if value.is_fully_addressable:
            return value
        if not _is_whole_here(value):
            return None
        sharding = (
            host_cores.replicated
            if host_cores.mesh is None
            else NamedSharding(host_cores.mesh, _spec_of(value))
        )
        shards = [shard.data for shard in value.addressable_shards]
        return jax.make_array_from_single_device_arrays(value.shape, sharding, shards)

    views = {name: view(value) for name, value in values.items()}
    return {n: value for n, value in views.items() if value is not None}


def _of_host(devices: np.ndarray, host: int) -> np.ndarray:
    """Returns the adjacent devices of one process in a mesh."""
    is_own = np.vectorize(lambda d: d.process_index == host, otypes=[bool])
    positions = np.nonzero(is_own(devices))
    host_devices: np.ndarray = devices[np.ix_(*map(np.unique, positions))]
    if host_devices.size != len(positions[0]):
        raise ValueError(
            "The devices of a host must be adjacent in the mesh. Received: "
            f"{len(positions[0])} devices of host {host} among {host_devices.size}. "
            "Set a keras.distribution whose devices are in the order of "
            "`jax.devices()`, or none."
        )
    return host_devices


def _is_whole_here(value: jax.Array) -> bool:
    """Returns whether this host has all elements of an array."""
    shape = value.shape
    boxes = {
        IndexRanges.from_slices(shard.index, shape)
        for shard in value.addressable_shards
    }
    return sum(math.prod(box.shape) for box in boxes) == value.size


def _spec_of(value: jax.Array) -> PartitionSpec:
    if not isinstance(value.sharding, NamedSharding):
        raise TypeError(
            "The sharding of a variable must be a NamedSharding. Received: "
            f"{value.sharding}. Place it on a mesh with `jax.device_put`."
        )
    return value.sharding.spec
