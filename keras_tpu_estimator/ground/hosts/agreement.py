"""The processes that make the same calls, as all rooms above see them."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Self

from keras_tpu_estimator.ground.hosts import jax_internals
from keras_tpu_estimator.ground.hosts import this_process
from keras_tpu_estimator.ground.hosts.host_exchange import HostExchange
from keras_tpu_estimator.ground.hosts.membership import Membership


def is_chief() -> bool:
    """Whether this process writes for all.

    Example:

    >>> is_chief()
    True
    """
    joined = jax_internals.joined_cluster()
    return joined is None or joined[2] == 0


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The processes that run one program, of which this is one.

    Attributes:
        index: The number of this one.
        patience_secs: How long one is waited for before it is taken for
            stuck.
        membership: What this one has with the others, if it has joined them.

    Example:

    >>> hosts = Hosts()
    >>> hosts.is_chief, hosts.are_several
    (True, False)
    """

    index: int = 0
    count: int = 1
    patience_secs: float = 30.0
    membership: Membership | None = dataclasses.field(
        default=None, repr=False, compare=False
    )

    @classmethod
    def of_this_process(cls, patience_secs: float) -> Self:
        """Those of the cluster that this process has joined."""
        joined = this_process.membership()
        if joined is None:
            return cls()
        joined.watch.patience_secs = patience_secs
        return cls(joined.index, joined.count, patience_secs, joined)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes for all."""
        return self.index == 0

    @property
    def are_several(self) -> bool:
        """Whether there are others to agree with."""
        if self.membership is None:
            return self.count > 1
        return not self.membership.is_apart

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[HostExchange]:
        """A call that all hosts make; an error in it is told to all."""
        with self.exchange(name) as together, together.reported_errors():
            yield together

    def exchange(self, subject: str) -> HostExchange:
        """Begins to agree on something, as all hosts do in the same order."""
        return HostExchange(self.membership, subject, self.patience_secs)

    def ran(self) -> None:
        """Tells that the devices have been given another run of steps."""
        if self.membership is not None:
            self.membership.watch.runs += 1

    def busy(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Has others wait for this host, as long as it is alive.

        Args:
            what: What it does in the `with` block, such as "reads a file".
        """
        if self.membership is None or self.membership.is_apart:
            return contextlib.nullcontext()
        return self.membership.watch.busy(what)
