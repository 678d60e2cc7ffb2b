"""The cores that run one program, and the mesh they form.

Only this room knows how the mesh is laid out.
"""

import collections
import dataclasses
import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
from jax.sharding import SingleDeviceSharding

from keras_tpu_estimator.ground.base.index_ranges import IndexRanges
from keras_tpu_estimator.ground.base.machine import Machine
from keras_tpu_estimator.ground.base.topology import Topology
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.mesh.reductions import mean_over
from keras_tpu_estimator.ground.mesh.reductions import sum_over
from keras_tpu_estimator.ground.mesh.replica_context import ReplicaContext
from keras_tpu_estimator.ground.mesh.variable_layout import VariableLayout

_BATCH = "batch"


@dataclasses.dataclass(frozen=True)
class Cores:
    """The cores that run one program, each with its slice of the batch.

    Those of one replica have a slice together: the variables are sharded over
    them, and XLA spreads the work.

    Attributes:
        topology: The number of replicas, and the hosts that feed them.
        mesh: The mesh they form, or `None` for one core.
        device: That one core; this host's first if it is `None`.
        axes: The mesh axes that the batch is split over; none for one replica.
        model_axes: The axes that the cores of a replica lie on, if they are
            several.
        layout: How variables lie on the cores of a replica, or `None` if each
            core has them whole.
        board: Pairs of a device of this host, and of what stands for it as in
            `Machine`.
    """

    topology: Topology
    mesh: jax.sharding.Mesh | None = None
    device: jax.Device | None = None
    axes: tuple[str, ...] = ()
    model_axes: tuple[str, ...] = ()
    layout: VariableLayout | None = None
    board: tuple[tuple[jax.Device, jax.Device], ...] = ()

    @property
    def context(self) -> ReplicaContext:
        """A fresh context for code of one of these cores."""
        return ReplicaContext(
            self.topology.num_replicas, self.axes, self.platform
        )

    @property
    def axis_sizes(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of the axes, as a tracer wants them."""
        if self.mesh is None:
            return ()
        return tuple((axis, self.mesh.shape[axis]) for axis in self.axes)

    @property
    def platform(self) -> str:
        """What kind of devices they are, such as "cpu"."""
        return self._first.platform

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The devices of a program, in their order."""
        if self.mesh is not None:
            return tuple(self.mesh.devices.flat)
        return (self.device or Machine.here().first,)

    @property
    def _first(self) -> jax.Device:
        return self.devices[0]

    def as_one(self) -> "Cores":
        """One core in place of these; what it computes, all of them hold."""
        topology = Topology(
            1, cores_per_replica=self.topology.cores_per_replica
        )
        return dataclasses.replace(self, topology=topology, axes=())

    @property
    def share_slots(self) -> bool:
        """Whether each replica has a part of the optimizers' slots."""
        return bool(self.axes) and (
            self.layout is not None and self.layout.slots_are_shared
        )

    @property
    def are_on_hosts(self) -> bool:
        """Whether some of them belong to other processes."""
        return self.mesh is not None and len(hosts_of(self.mesh)) > 1

    @property
    def replicated(self) -> jax.sharding.Sharding:
        """The sharding of what every core holds whole, such as weights."""
        if self.mesh is None:
            return SingleDeviceSharding(self._first)
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def rows_sharding(self) -> jax.sharding.Sharding:
        """The sharding of what each core has some rows of, such as tables."""
        if self.mesh is None:
            return SingleDeviceSharding(self._first)
        return NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names))

    def batch_sharding(self, axis: int = 0) -> jax.sharding.Sharding:
        """The sharding of a tensor whose dimension `axis` is the batch."""
        if self.mesh is None:
            return SingleDeviceSharding(self._first)
        return NamedSharding(
            self.mesh, PartitionSpec(*[None] * axis, self.axes)
        )

    def put_whole(self, nest: Nest, sharding: jax.sharding.Sharding) -> Nest:
        """Copies to the devices what every host has whole.

        Args:
            nest: Nest of arrays, equal on all hosts.
        """
        if not self.are_on_hosts:
            return jax.device_put(nest, sharding)

        def put(leaf: jax.Array | np.ndarray) -> jax.Array:
            if isinstance(leaf, jax.Array):
                if leaf.sharding == sharding:
                    return leaf
                if not leaf.is_fully_replicated and not (
                    leaf.is_fully_addressable
                ):
                    # All hosts have called this.
                    return jax.jit(jnp.copy, out_shardings=sharding)(leaf)
            array = np.asarray(leaf)
            return jax.make_array_from_callback(
                array.shape, sharding, array.__getitem__
            )

        return jax.tree.map(put, nest)

    def put_by_part(
        self,
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

    def put_parts(self, nest: Nest, axis: int) -> Nest:
        """Copies to the devices batches of which each host has its cores' part.

        No host sends anything to another.

        Args:
            nest: Nest of arrays of one shape on all hosts.
            axis: Their dimension that is the batch.
        """
        sharding = self.batch_sharding(axis)
        hosts = self.topology.num_readers

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
        devices = _of_host(self.mesh.devices, self.topology.host_index)
        for device, other in self.board:
            devices = np.where(devices == device, other, devices)
        if devices.size == 1:
            return dataclasses.replace(ONE_CORE, device=devices.flat[0])
        mesh = jax.sharding.Mesh(
            devices, self.mesh.axis_names, self.mesh.axis_types
        )
        per_replica = self.topology.of_lone_hosts.cores_per_replica
        topology = Topology(
            devices.size // per_replica, cores_per_replica=per_replica
        )
        axes = self.axes if topology.num_replicas > 1 else ()
        layout = self.layout and self.layout.over(mesh.shape, per_replica)
        return Cores(
            topology,
            mesh,
            axes=axes,
            model_axes=self.model_axes,
            layout=layout,
        )

    @property
    def need_others(self) -> bool:
        """Whether values lie over several hosts, of which none has all."""
        is_unbatched = self.share_slots or self.topology.hosts_per_replica > 1
        return self.are_on_hosts and is_unbatched

    def variable_sharding(
        self, path: str, shape: tuple[int, ...], owner: str | None = None
    ) -> jax.sharding.Sharding:
        """The sharding of a variable.

        Args:
            path: Its path.
            shape: Its shape.
            owner: For a slot, the path of the variable it is about.
        """
        if self.mesh is None or self.layout is None:
            return self.replicated
        axes = self.layout.axes(path, shape, owner)
        return NamedSharding(
            self.mesh, PartitionSpec(*map(self._mesh_axes, axes))
        )

    def like_variable(self, gradient: jax.Array, path: str) -> jax.Array:
        """Has a gradient lie as its variable and slots do, inside `per_core`.

        Else XLA may have the cores share an update that each of them needs
        whole, and gather the new variable and each new slot.
        """
        if self.layout is None or self.share_slots:
            return gradient
        axes = self.layout.axes(path, gradient.shape)
        return self._laid(gradient, map(self._mesh_axes, axes))

    def like_slot(self, x: jax.Array, path: str) -> jax.Array:
        """Has replicas share a variable or its gradient as they do its slots.

        Else XLA may have each of them update all of it.

        Args:
            x: What all of them have, outside of `per_core`.
        """
        if not self.share_slots:
            return x
        sharding = self.variable_sharding(path, x.shape, owner=path)
        return jax.lax.with_sharding_constraint(x, sharding)

    def gathered(self, value: jax.Array, path: str) -> jax.Array:
        """Has all replicas have a variable of which each has made its part.

        Args:
            value: The variable's value, outside of `per_core`.
        """
        if not self.share_slots:
            return value
        return jax.lax.with_sharding_constraint(
            self.like_slot(value, path),
            self.variable_sharding(path, value.shape),
        )

    def _laid(
        self, x: jax.Array, axes: Iterable[str | tuple[str, ...] | None]
    ) -> jax.Array:
        """Has the cores of a replica share a tensor, inside `per_core`."""
        if self.mesh is None:
            return x
        # There, a mesh is known whose batch axes are taken.
        mesh = jax.sharding.get_abstract_mesh() if self.axes else self.mesh
        return jax.lax.with_sharding_constraint(
            x, NamedSharding(mesh, PartitionSpec(*axes))
        )

    def _mesh_axes(self, axis: str | None) -> str | tuple[str, ...] | None:
        """Those of the mesh that an axis of a layout stands for."""
        is_of_mesh = self.mesh is None or axis in self.mesh.axis_names
        return axis if axis is None or is_of_mesh else self.model_axes

    def cut(self, x: jax.Array, counts: Sequence[int]) -> jax.Array:
        """Has the cores of a replica share a tensor, inside `per_core`.

        Sizes that they cannot share evenly are no harm.

        Args:
            x: The tensor, which each of them has whole.
            counts: Into how many parts each dimension is cut. Their product
                is 1 or the number of cores.

        Raises:
            ValueError: The axes that the cores lie on cannot be dealt so.
        """
        if self.mesh is None:
            return x
        left = list(self.model_axes)
        spec = []
        for count in counts:
            taken: list[str] = []
            size = 1
            while size < count and left:
                taken.append(left.pop(0))
                size *= self.mesh.shape[taken[-1]]
            if size != count:
                shape = {a: self.mesh.shape[a] for a in self.model_axes}
                raise ValueError(
                    f"Parts of {list(counts)} should be made of whole axes of "
                    "the keras.distribution that is set, in their order. "
                    f"Received the axes {shape}. Unset it, and set "
                    "num_cores_per_replica alone."
                )
            spec.append(tuple(taken) or None)
        return self._laid(x, spec)

    def own_copies(
        self, values: Mapping[str, jax.Array]
    ) -> dict[str, jax.Array]:
        """What this host's devices hold of variables, on `own` cores.

        Nothing is copied. What other hosts have parts of is left out.

        Args:
            values: Arrays by name.
        """
        own = self.own()
        if not self.are_on_hosts:
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
            return jax.make_array_from_single_device_arrays(
                value.shape, sharding, shards
            )

        views = {name: view(value) for name, value in values.items()}
        return {n: value for n, value in views.items() if value is not None}

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
            # The cores of a replica are left to XLA.
            axis_names=set(self.axes),
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
        """The mean over the cores, inside `per_core`; a float of integers."""
        return mean_over(x, self.axes) if self.axes else x

    def sum(self, x: jax.Array) -> jax.Array:
        """The sum over the cores, inside `per_core`; an integer of booleans."""
        return sum_over(x, self.axes) if self.axes else x

    def of_first(self, x: jax.Array) -> jax.Array:
        """The first core's value, on all of them, inside `per_core`."""
        if not self.axes:
            return x
        first = self.core_index() == 0
        own = jnp.where(first, x, jnp.zeros_like(x))
        # Booleans are added as integers, and come back as themselves.
        return sum_over(own, self.axes).astype(own.dtype)


ONE_CORE = Cores(Topology(num_replicas=1))


def hosts_of(mesh: jax.sharding.Mesh) -> set[int]:
    """The numbers of the processes that the devices of a mesh belong to."""
    return {device.process_index for device in mesh.devices.flat}


def _of_host(devices: np.ndarray, host: int) -> np.ndarray:
    """Those devices that belong to a process, which lie side by side."""
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
    """Whether this host has all of what an array has on any."""
    shape = value.shape
    boxes = {
        IndexRanges.of(each.index, shape) for each in value.addressable_shards
    }
    return sum(math.prod(box.shape) for box in boxes) == value.size


def _spec_of(value: jax.Array) -> PartitionSpec:
    if not isinstance(value.sharding, NamedSharding):
        raise TypeError(f"An array should lie on a mesh. Received: {value}")
    return value.sharding.spec
