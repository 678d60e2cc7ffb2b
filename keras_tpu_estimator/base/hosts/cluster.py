"""The number of this process, the number of processes, and their address."""

import dataclasses
import re

from keras_tpu_estimator.base.common.field_checks import check_int

_MAX_PORT = 65535


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that train together, and the number of this one.

    Args:
        coordinator_address: Host and port of process 0, as in `'10.0.0.1:8476'`. A
            single process ignores it.
        process_id: The number of this process, from 0.
        local_id: Its number on its machine, if each process uses one of the machine's
            GPUs. By default it uses all, or those that JAX selects.
    """

    coordinator_address: str | None = None
    num_processes: int = 1
    process_id: int = 0
    local_id: int | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_int("num_processes", self.num_processes, minimum=1)
        check_int("process_id", self.process_id, minimum=0)
        if self.process_id >= self.num_processes:
            raise ValueError(
                "`process_id` must be from 0 to "
                f"{self.num_processes - 1}, because `num_processes` is "
                f"{self.num_processes}. Received: {self.process_id}. Number "
                "the processes from 0, and give each its own number."
            )
        if self.is_alone:
            object.__setattr__(self, "coordinator_address", None)
        else:
            _check_address(self.coordinator_address)

    @property
    def is_alone(self) -> bool:
        """Whether there is only one process."""
        return self.num_processes == 1

    def __str__(self) -> str:
        if self.is_alone:
            return "a single process"
        return (
            f"process {self.process_id} of {self.num_processes}, with the "
            f"coordinator at {self.coordinator_address}"
        )


def _check_address(address: object) -> None:
    if not isinstance(address, str):
        raise TypeError(
            "`coordinator_address` must be a string, host:port. Received: "
            f"{address!r} of type {type(address).__name__}. Write the address "
            "of process 0, such as '10.0.0.1:8476'."
        )
    # IPv6 addresses also contain colons.
    match = re.fullmatch(r"(?:\[[^\]]+\]|[^:/\s]+):([0-9]{1,5})", address)
    if match is None or not 0 < int(match[1]) <= _MAX_PORT:
        raise ValueError(
            "`coordinator_address` must be host:port, without a scheme. "
            f"Received: {address!r}. Write the address of process 0, with a "
            "port that is free on it, such as '10.0.0.1:8476'."
        )
