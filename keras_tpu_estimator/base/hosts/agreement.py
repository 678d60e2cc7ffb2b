"""The processes that make the same calls."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Self

from keras_tpu_estimator.base.hosts import this_process
from keras_tpu_estimator.base.hosts.host_exchange import HostExchange
from keras_tpu_estimator.base.hosts.membership import Membership
from keras_tpu_estimator.base.upstream import jax_clusters


def is_chief() -> bool:
    """Returns whether this is process 0, which writes the files of all."""
    joined = jax_clusters.joined_cluster()
    return joined is None or joined[2] == 0


def process_count() -> int:
    """Returns the number of processes in the cluster of this one."""
    joined = jax_clusters.joined_cluster()
    return 1 if joined is None else joined[1]


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The processes that run the same program, including this one.

    A process that does not answer within `patience_secs` counts as stuck.
    """

    index: int = 0
    count: int = 1
    patience_secs: float = 30.0
    membership: Membership | None = dataclasses.field(
        default=None, repr=False, compare=False
    )

    @classmethod
    def of_this_process(cls, patience_secs: float) -> Self:
        """Returns the processes of the cluster that this one has joined."""
        joined = this_process.membership()
        if joined is None:
            return cls()
        joined.watch.patience_secs = patience_secs
        return cls(joined.index, joined.count, patience_secs, joined)

    @property
    def is_chief(self) -> bool:
        """Whether this is process 0, which writes the files of all."""
        return self.index == 0

    @property
    def are_several(self) -> bool:
        """Whether there are other processes to agree with."""
        if self.membership is None:
            return self.count > 1
        return not self.membership.is_apart

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[HostExchange]:
        """Begins a call that all processes make, and reports its errors."""
        with self.exchange(name) as together, together.reported_errors():
            yield together

    def exchange(self, subject: str) -> HostExchange:
        """Begins an exchange; all processes must begin theirs in one order."""
        return HostExchange(self.membership, subject, self.patience_secs)

    def ran(self) -> None:
        """Counts a run of steps that was dispatched to the devices."""
        if self.membership is not None:
            self.membership.watch.runs += 1

    def busy(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Makes other processes wait for this one while it is alive.

        Args:
            what: The activity of the `with` block, such as "reads a file".
        """
        if self.membership is None or self.membership.is_apart:
            return contextlib.nullcontext()
        return self.membership.watch.busy(what)
