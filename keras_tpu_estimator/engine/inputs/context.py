"""What `params["context"]` tells about the cores."""

import dataclasses

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
    """The replicas of a model that is sharded over several cores.

    Attributes:
        num_replicas: Copies of the model.
        num_cores_per_replica: Cores of each.
    """

    num_replicas: int
    num_cores_per_replica: int


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
        return DeviceAssignment(
            topology.num_replicas, topology.cores_per_replica
        )

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
        return self.tpu_host_placement_function(host), ordinal

    def tpu_host_placement_function(self, host_id: int = 0) -> str:
        """The device of a host."""
        return f"/replica:0/task:{host_id}/device:CPU:0"

    def _in_input_fn(self, name: str) -> Deployment:
        if self.deployment is None:
            raise RuntimeError(
                f"`{name}` is available in input_fn only. Received a call in "
                "model_fn."
            )
        return self.deployment
