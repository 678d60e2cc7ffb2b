"""The calls of `input_fn`: their number, cores, batch sizes and `context`."""

import dataclasses

import numpy as np

from keras_tpu_estimator.api.config.tpu_config import InputPipelineConfig
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.topology import Topology


@dataclasses.dataclass(frozen=True)
class Deployment:
    """One of a mode's calls of `input_fn`, by its index among those of all hosts.

    `replicas` is the number of cores that the call feeds, and `batch_size` the value of
    `params["batch_size"]`.
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
        """The number of copies of the model."""
        return self.topology.num_replicas

    @property
    def num_cores_per_replica(self) -> int:
        """The number of devices of each copy."""
        return self.topology.cores_per_replica

    @property
    def core_assignment(self) -> np.ndarray:
        """The coordinates, of shape `[num_replicas, num_cores_per_replica, 1]`."""
        shape = (self.num_replicas, self.num_cores_per_replica, 1)
        return np.arange(self.topology.num_cores, dtype="int32").reshape(shape)

    def coordinates(self, replica: int, logical_core: int) -> tuple[int, ...]:
        """Returns the coordinates of a replica's device.

        Raises:
            IndexError: The replica or device does not exist.
        """
        coordinates = self.core_assignment[replica, logical_core]
        return tuple(int(coordinate) for coordinate in coordinates)

    def lookup_replicas(self, task_id: int, logical_core: int) -> list[int]:
        """Returns the replicas whose device of this number is on a host.

        Raises:
            ValueError: No replica has one there.
        """
        replicas = [
            replica
            for replica in range(self.num_replicas)
            if logical_core < self.num_cores_per_replica
            and self._position(replica, logical_core)[0] == task_id
        ]
        if not replicas:
            raise ValueError(
                "A host must have a device of this number of some replica. "
                f"Received: task_id={task_id}, logical_core={logical_core}, "
                f"with {self.topology}. Pass smaller numbers."
            )
        return replicas

    def tpu_ordinal(self, replica: int = 0, logical_core: int = 0) -> int:
        """Returns the number of a device on its host."""
        return self._position(replica, logical_core)[1]

    def host_device(
        self, replica: int = 0, logical_core: int = 0, job: str | None = None
    ) -> str:
        """Returns the name of the CPU of a device's host."""
        host, _ = self._position(replica, logical_core)
        return f"{_job(job)}/task:{host}/device:CPU:0"

    def tpu_device(
        self, replica: int = 0, logical_core: int = 0, job: str | None = None
    ) -> str:
        """Returns the name of a device."""
        host, ordinal = self._position(replica, logical_core)
        return f"{_job(job)}/task:{host}/device:TPU:{ordinal}"

    def _position(self, replica: int, logical_core: int) -> tuple[int, int]:
        """Returns the host of a device, and its number there."""
        (number,) = self.coordinates(replica, logical_core)
        topology = self.topology
        return divmod(number, topology.num_cores // topology.num_hosts)


def _job(name: str | None) -> str:
    return "" if name is None else f"/job:{name}"


@dataclasses.dataclass(frozen=True)
class TPUContext:
    """The cores, as `input_fn` and `model_fn` see them.

    The counterpart of `tf.compat.v1.estimator.tpu.TPUContext`. Its value is
    `params["context"]`.

    Args:
        topology: The replicas and hosts.
        deployment: The call of `input_fn`, or `None` in `model_fn`.
    """

    topology: Topology
    deployment: Deployment | None = None

    @property
    def num_replicas(self) -> int:
        """The number of replicas."""
        return self.topology.num_replicas

    @property
    def num_hosts(self) -> int:
        """The number of hosts."""
        return self.topology.num_hosts

    @property
    def num_of_replicas_per_host(self) -> int:
        """The number of replicas that a host feeds.

        Raises:
            RuntimeError: A replica consists of several cores.
        """
        if self.topology.cores_per_replica > 1:
            raise RuntimeError(
                "`num_of_replicas_per_host` must not be used when a replica has "
                "several cores, as in TensorFlow. Received: "
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
        """The cores of each replica in `model_fn`; `None` for single cores.

        Raises:
            RuntimeError: `input_fn` reads it.
        """
        if self.deployment is not None:
            raise RuntimeError(
                "`device_assignment` must be read in model_fn. Received a call in "
                "input_fn. Move it."
            )
        topology = self.topology
        if topology.cores_per_replica == 1:
            return None
        return DeviceAssignment(topology)

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        """Returns the properties of this call of `input_fn`.

        Returns:
            The host's device, the number of this call, the number of all
            calls, and the number of cores that this one feeds.

        Raises:
            RuntimeError: `model_fn` calls this method.
        """
        call = self._in_input_fn("current_input_fn_deployment")
        device = self.tpu_host_placement_function(self.topology.host_index)
        return device, call.index, call.total, call.replicas

    def device_for_replica(self, replica_id: int) -> tuple[str, int]:
        """Returns the device of the host that feeds a core, and the core's number."""
        per_host = self.topology.replicas_per_host
        host, ordinal = divmod(replica_id, per_host)
        # Without "/replica:0", which only the other method adds.
        return f"/task:{host}/device:CPU:0", ordinal

    def tpu_host_placement_function(self, host_id: int = 0) -> str:
        """Returns the device of a host."""
        return f"/replica:0/task:{host_id}/device:CPU:0"

    def _in_input_fn(self, name: str) -> Deployment:
        if self.deployment is None:
            raise RuntimeError(
                f"`{name}` must be used in input_fn. Received a call in model_fn. "
                "Move it."
            )
        return self.deployment


_SPLIT = (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.SLICED)
PER_CORE = (InputPipelineConfig.PER_SHARD_V1, InputPipelineConfig.PER_HOST_V2)


@dataclasses.dataclass(frozen=True)
class InputPlan:
    """The calls of `input_fn` that this host makes for a mode.

    Each call has `batches_per_call` batches in one step. `pipeline_config` is `None`
    for one core, and `topology` is `None` if `params` has no `context`.
    """

    calls: tuple[Deployment, ...]
    batches_per_call: int = 1
    pipeline_config: InputPipelineConfig | None = None
    topology: Topology | None = None

    @property
    def is_split(self) -> bool:
        """Whether a batch is split over the cores."""
        return self.pipeline_config in _SPLIT

    @property
    def is_per_core(self) -> bool:
        """Whether a step has a separate batch for each core."""
        return self.pipeline_config in PER_CORE

    @property
    def is_replicated(self) -> bool:
        """Whether each host reads the batches of all hosts."""
        return self.calls[0].total == 1

    @property
    def step_size(self) -> int | None:
        """The number of examples of a step on this host, if it is known."""
        size = self.calls[0].batch_size
        if size is None:
            return None
        return size * self.batches_per_call * len(self.calls)

    def context(self, call: Deployment) -> TPUContext | None:
        """Returns the value of `params["context"]` in a call."""
        if self.topology is None:
            return None
        return TPUContext(self.topology, call)


def undivided(batch_size: int | None) -> InputPlan:
    """Returns a plan with one call for one core."""
    return InputPlan((Deployment(0, 1, 1, batch_size),))


def input_plan(
    mode: str, pipeline_config: InputPipelineConfig, topology: Topology, batch_size: int
) -> InputPlan:
    """Returns the plan of calls for several cores, which share the batch of a step."""
    pipeline_config = config_in(mode, pipeline_config)
    replicas, hosts = topology.num_replicas, topology.num_readers
    per_host, host = topology.replicas_per_host, topology.reader_index
    calls: tuple[Deployment, ...]
    calls = (Deployment(host, hosts, per_host, batch_size // hosts),)
    batches_per_call = 1
    if pipeline_config == InputPipelineConfig.PER_SHARD_V1:
        calls = tuple(
            Deployment(host * per_host + i, replicas, 1, batch_size // replicas)
            for i in range(per_host)
        )
    elif pipeline_config == InputPipelineConfig.PER_HOST_V2:
        calls = (Deployment(host, hosts, per_host, batch_size // replicas),)
        batches_per_call = per_host
    elif pipeline_config in (InputPipelineConfig.BROADCAST, InputPipelineConfig.SLICED):
        calls = (Deployment(0, 1, replicas, batch_size),)
    return InputPlan(calls, batches_per_call, pipeline_config, topology)


def config_in(mode: str, pipeline_config: InputPipelineConfig) -> InputPipelineConfig:
    """Returns the input configuration of a mode: PER_SHARD_V1 only trains."""
    is_per_shard = pipeline_config == InputPipelineConfig.PER_SHARD_V1
    if is_per_shard and mode != ModeKeys.TRAIN:
        return InputPipelineConfig.PER_HOST_V1
    return pipeline_config
