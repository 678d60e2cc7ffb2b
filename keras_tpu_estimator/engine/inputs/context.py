"""What `params["context"]` tells about the cores."""

import dataclasses

import numpy as np

from keras_tpu_estimator.ground.base.topology import Topology


@dataclasses.dataclass(frozen=True)
class Deployment:
    """One call of `input_fn` among all of a mode's.

    Attributes:
        index: Its number.
        total: How many calls there are, over all hosts.
        replicas: The cores that it feeds.
        batch_size: The value of `params["batch_size"]`, if it has one.
    """

    index: int
    total: int
    replicas: int
    batch_size: int | None


@dataclasses.dataclass(frozen=True)
class DeviceAssignment:
    """The devices of each replica of a model that is sharded over several.

    The counterpart of `tf.tpu.experimental.DeviceAssignment`. The mesh has one
    dimension: a device's only coordinate is its number over all hosts.

    Args:
        topology: The replicas and hosts.
    """

    topology: Topology

    @property
    def num_replicas(self) -> int:
        """Copies of the model."""
        return self.topology.num_replicas

    @property
    def num_cores_per_replica(self) -> int:
        """Devices of each."""
        return self.topology.cores_per_replica

    @property
    def core_assignment(self) -> np.ndarray:
        """Coordinates, of shape `[num_replicas, num_cores_per_replica, 1]`."""
        shape = (self.num_replicas, self.num_cores_per_replica, 1)
        return np.arange(self.topology.num_cores, dtype="int32").reshape(shape)

    def coordinates(self, replica: int, logical_core: int) -> tuple[int, ...]:
        """Returns the coordinates of a replica's device.

        Raises:
            IndexError: There is no such replica or device.
        """
        found = self.core_assignment[replica, logical_core]
        return tuple(int(each) for each in found)

    def lookup_replicas(self, task_id: int, logical_core: int) -> list[int]:
        """Returns the replicas whose device of this number is on a host.

        Raises:
            ValueError: There are none.
        """
        found = [
            replica
            for replica in range(self.num_replicas)
            if logical_core < self.num_cores_per_replica
            and self._place(replica, logical_core)[0] == task_id
        ]
        if not found:
            raise ValueError(
                "A host must have a device of this number of some replica. "
                f"Received: task_id={task_id}, logical_core={logical_core}, "
                f"with {self.topology}. Pass smaller numbers."
            )
        return found

    def tpu_ordinal(self, replica: int = 0, logical_core: int = 0) -> int:
        """Returns the number of a device on its host."""
        return self._place(replica, logical_core)[1]

    def host_device(
        self, replica: int = 0, logical_core: int = 0, job: str | None = None
    ) -> str:
        """Returns the name of the CPU of a device's host."""
        host, _ = self._place(replica, logical_core)
        return f"{_job(job)}/task:{host}/device:CPU:0"

    def tpu_device(
        self, replica: int = 0, logical_core: int = 0, job: str | None = None
    ) -> str:
        """Returns the name of a device."""
        host, ordinal = self._place(replica, logical_core)
        return f"{_job(job)}/task:{host}/device:TPU:{ordinal}"

    def _place(self, replica: int, logical_core: int) -> tuple[int, int]:
        """Returns the host of a device, and its number there."""
        (number,) = self.coordinates(replica, logical_core)
        topology = self.topology
        return divmod(number, topology.num_cores // topology.num_hosts)


def _job(name: str | None) -> str:
    return "" if name is None else f"/job:{name}"


@dataclasses.dataclass(frozen=True)
class TPUContext:
    """The cores, as `input_fn` and `model_fn` see them.

    The counterpart of `tf.compat.v1.estimator.tpu.TPUContext`, given to users
    as `params["context"]`.

    Args:
        topology: The cores.
        deployment: The call of `input_fn` that it is given to, or `None` in
            `model_fn`.
    """

    topology: Topology
    deployment: Deployment | None = None

    @property
    def num_replicas(self) -> int:
        """Number of cores."""
        return self.topology.num_replicas

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return self.topology.num_hosts

    @property
    def num_of_replicas_per_host(self) -> int:
        """Number of replicas that a host feeds.

        Raises:
            RuntimeError: A replica is several cores.
        """
        if self.topology.cores_per_replica > 1:
            raise RuntimeError(
                "`num_of_replicas_per_host` is not told where a model is "
                "sharded over several cores, as in the original. Received: "
                f"num_cores_per_replica={self.topology.cores_per_replica}. Use "
                "`num_replicas` and `num_hosts`."
            )
        return self.topology.replicas_per_host

    @property
    def current_host(self) -> int:
        """The number of this host, in `input_fn`."""
        self._in_input_fn("current_host")
        return self.topology.host_index

    @property
    def device_assignment(self) -> DeviceAssignment | None:
        """In `model_fn`, the cores of each replica; `None` for single ones.

        Raises:
            RuntimeError: It is asked for in `input_fn`.
        """
        if self.deployment is not None:
            raise RuntimeError(
                "`device_assignment` is available in model_fn only. Received "
                "a call in input_fn."
            )
        topology = self.topology
        if topology.cores_per_replica == 1:
            return None
        return DeviceAssignment(topology)

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        """This call of `input_fn`.

        Returns:
            The host's device, the number of this call, the number of all
            calls, and the number of cores that this one feeds.

        Raises:
            RuntimeError: It is asked for in `model_fn`.
        """
        call = self._in_input_fn("current_input_fn_deployment")
        device = self.tpu_host_placement_function(self.topology.host_index)
        return device, call.index, call.total, call.replicas

    def device_for_replica(self, replica_id: int) -> tuple[str, int]:
        """The device of the host that feeds a core, and the core's number."""
        per_host = self.topology.replicas_per_host
        host, ordinal = divmod(replica_id, per_host)
        # Without "/replica:0", which only the other method adds.
        return f"/task:{host}/device:CPU:0", ordinal

    def tpu_host_placement_function(self, host_id: int = 0) -> str:
        """The device of a host."""
        return f"/replica:0/task:{host_id}/device:CPU:0"

    def _in_input_fn(self, name: str) -> Deployment:
        if self.deployment is None:
            raise RuntimeError(
                f"`{name}` is available in input_fn only. Received a call in model_fn."
            )
        return self.deployment
