"""Which process this is, of how many, and where they meet."""

import dataclasses
import re

from keras_tpu_estimator.ground.base.field_checks import check_int

_MAX_PORT = 65535


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that train together, and the place of this one.

    Args:
        coordinator_address: Host and port of process 0, as in
            `'10.0.0.1:8476'`; dropped, if there is no other. Defaults to
            `None`.
        process_id: The number of this one, from 0. Defaults to 0.

    Raises:
        ValueError: A value is out of range, or no address.
        TypeError: A value is of a wrong type.

    Example:

    >>> from keras_tpu_estimator.ground.hosts.cluster import Cluster
    >>> cluster = Cluster("10.0.0.1:8476", num_processes=4, process_id=1)
    >>> print(cluster)
    process 1 of 4, with the coordinator at 10.0.0.1:8476
    >>> cluster.is_alone, Cluster().is_alone
    (False, True)
    """

    coordinator_address: str | None = None
    num_processes: int = 1
    process_id: int = 0

    def __post_init__(self) -> None:
        check_int("num_processes", self.num_processes, minimum=1)
        check_int("process_id", self.process_id, minimum=0)
        if self.process_id >= self.num_processes:
            raise ValueError(
                "`process_id` should be from 0 to "
                f"{self.num_processes - 1}, as `num_processes` is "
                f"{self.num_processes}. Received: {self.process_id}. Number "
                "processes from 0, each with a number of its own."
            )
        if self.is_alone:
            object.__setattr__(self, "coordinator_address", None)
        else:
            _check_address(self.coordinator_address)

    @property
    def is_alone(self) -> bool:
        """Whether there is one process only."""
        return self.num_processes == 1

    def __str__(self) -> str:
        if self.is_alone:
            return "a process alone"
        return (
            f"process {self.process_id} of {self.num_processes}, with the "
            f"coordinator at {self.coordinator_address}"
        )


def _check_address(address: object) -> None:
    if not isinstance(address, str):
        raise TypeError(
            "`coordinator_address` should be a string, host:port. Received: "
            f"{address!r} of type {type(address).__name__}. Write the address "
            "of process 0, such as '10.0.0.1:8476'."
        )
    # A host of the sixth version of the protocol has colons, too.
    match = re.fullmatch(r"(?:\[[^\]]+\]|[^:/\s]+):([0-9]{1,5})", address)
    if match is None or not 0 < int(match[1]) <= _MAX_PORT:
        raise ValueError(
            "`coordinator_address` should be host:port, without a scheme. "
            f"Received: {address!r}. Write the address of process 0, with a "
            "port that is free there, such as '10.0.0.1:8476'."
        )
