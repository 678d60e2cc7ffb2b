"""How many cores there are, and how they lie on hosts."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Topology:
    """The replicas of a model and the hosts that feed them.

    A replica is one copy of the model with its own slice of the batch: one
    core, or several that the model is sharded over.

    Attributes:
        num_replicas: Copies of the model over all hosts.
        num_hosts: Processes that feed them. Defaults to 1.
        host_index: Which of these hosts this process is. Defaults to 0.
        cores_per_replica: Cores that a replica is sharded over. Defaults to 1.
        hosts_per_replica: Hosts that these cores belong to. Defaults to 1.
    """

    num_replicas: int
    num_hosts: int = 1
    host_index: int = 0
    cores_per_replica: int = 1
    hosts_per_replica: int = 1

    @property
    def replicas_per_host(self) -> int:
        """Replicas that one host feeds, alone or with others."""
        return self.num_replicas // self.num_readers

    @property
    def num_readers(self) -> int:
        """Parts of the input. Hosts that share a replica read the same one."""
        return self.num_hosts // self.hosts_per_replica

    @property
    def reader_index(self) -> int:
        """Which of these parts this process reads."""
        return self.host_index // self.hosts_per_replica

    @property
    def of_lone_hosts(self) -> "Topology":
        """The same hosts, where each has a replica to itself at least."""
        if self.hosts_per_replica == 1:
            return self
        return dataclasses.replace(
            self,
            num_replicas=self.num_hosts,
            cores_per_replica=self.cores_per_replica // self.hosts_per_replica,
            hosts_per_replica=1,
        )

    @property
    def num_cores(self) -> int:
        """Cores of all replicas."""
        return self.num_replicas * self.cores_per_replica
