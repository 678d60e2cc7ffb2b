"""The cores that run one program, and the mesh they form.

Only this room knows how the mesh is laid out.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
from jax.sharding import SingleDeviceSharding

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

    def whole_on_hosts(self, nest: Nest) -> Nest:
        """Has every host hold the whole of what a compiled function makes."""
        if not self.are_on_hosts:
            return nest
        return jax.lax.with_sharding_constraint(nest, self.replicated)

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
