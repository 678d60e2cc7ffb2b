"""The number of replicas, cores and hosts."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Topology:
    """The replicas of a model and the hosts (processes) that feed them.

    A replica is one copy of the model with its own slice of the batch: one core, or
    several that the model is sharded over, which may belong to several hosts.
    """

    num_replicas: int
    num_hosts: int = 1
    host_index: int = 0
    cores_per_replica: int = 1
    hosts_per_replica: int = 1

    @property
    def replicas_per_host(self) -> int:
        """The number of replicas that one host feeds."""
        return self.num_replicas // self.num_readers

    @property
    def num_readers(self) -> int:
        """The number of input parts; hosts of a replica read the same."""
        return self.num_hosts // self.hosts_per_replica

    @property
    def reader_index(self) -> int:
        """The number of the input part that this process reads."""
        return self.host_index // self.hosts_per_replica

    @property
    def of_lone_hosts(self) -> "Topology":
        """The same hosts, each with at least one complete replica."""
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
        """The number of cores of all replicas."""
        return self.num_replicas * self.cores_per_replica
