"""How many cores there are, and how they lie on hosts."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Topology:
    """The replicas of a model and the hosts that feed them.

    A replica is one copy of the model with its own slice of the batch: one
    core, or several that the model is spread over.

    Attributes:
        num_replicas: Copies of the model over all hosts.
        num_hosts: Processes that feed them. Defaults to 1.
        host_index: Which of these hosts this process is. Defaults to 0.
        cores_per_replica: Cores that a replica is spread over. Defaults to 1.
    """

    num_replicas: int
    num_hosts: int = 1
    host_index: int = 0
    cores_per_replica: int = 1

    @property
    def replicas_per_host(self) -> int:
        """Replicas that one host feeds."""
        return self.num_replicas // self.num_hosts

    @property
    def num_cores(self) -> int:
        """Cores of all replicas."""
        return self.num_replicas * self.cores_per_replica
