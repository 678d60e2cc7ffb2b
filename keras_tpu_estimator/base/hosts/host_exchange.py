"""Agreement of processes on one subject, without using any device.

Values travel through the key-value store of JAX's coordination service, so that
a thread can agree with its counterparts while the devices are busy. The last
process to arrive combines the values of all, and the others read its result:
each process makes at most four requests, however many processes there are. A
process without others agrees with itself at once.
"""

import contextlib
import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar, cast

import jax

from keras_tpu_estimator.base.hosts.failures import HostError, Problem
from keras_tpu_estimator.base.hosts.membership import Membership

_logger = logging.getLogger("keras_tpu_estimator")

_FOLDER = "agreed"
# The interval at which a waiting process checks for failures of others. It grows
# with their number, so that these checks do not delay the agreement itself.
_LOOK_MSECS = 500
_LOOK_MSECS_PER_PROCESS = 4

T = TypeVar("T")


class Compared(Protocol):
    """Something that must be equal in all processes whenever they agree."""

    def digest(self) -> int:
        """Returns a number that is equal if the compared values are."""

    def facts(self) -> dict[str, Any]:
        """Returns the compared values in a form that JSON can represent."""

    def is_equal(self) -> None:
        """Called after a round in which all digests were equal."""

    def error(self, facts: Sequence[Mapping[str, Any]]) -> Exception:
        """Returns the error for unequal digests, from each process's facts."""


class HostExchange:
    """Rounds in which each process writes a value, and the last one to arrive combines
    them to the result of all.

    No process is special, so a round takes one write and one read of each. All
    processes must call the same methods in the same order, each on one thread at a
    time, and must begin the exchanges about one subject in the same order. The values
    are deleted when all processes have closed the exchange.

    Attributes:
        compared: Values that must be equal in each round, if any.
    """

    def __init__(
        self,
        membership: Membership | None,
        subject: str,
        patience_secs: float = 30.0,
    ):
        self._subject = subject
        self._patience_secs = patience_secs
        self._round = 0
        self._is_closed = False
        self._closing = threading.Lock()
        self._membership = membership
        self.compared: Compared | None = None
        self._name = subject
        if membership is not None:
            self._name += f"/{membership.number_of(subject)}"
            if membership.is_apart:
                self._membership = None

    @property
    def is_with_others(self) -> bool:
        """Whether there are other processes."""
        return self._active_membership is not None

    @property
    def _active_membership(self) -> Membership | None:
        """The connection to others, unless this process now acts alone."""
        membership = self._membership
        if membership is None or membership.is_apart:
            return None
        return membership

    def agree(
        self,
        value: Any,
        combine: Callable[[list[Any]], Any],
        about: str = "",
        more_patience_secs: float = 0.0,
    ) -> Any:
        """Returns one result of the values of all processes, or raises a `HostError`.

        Raises a `ValueError` if the processes agree about different things, or if the
        `compared` values are not equal.

        Args:
            value: This process's value: anything that JSON can represent.
            combine: Computes the result from the values, in the order of the processes.
                It runs in one of them.
            about: The subject of this round. Defaults to that of the exchange.
        """
        if self._active_membership is None:
            return combine([value])
        about = about or self._subject
        digest = 0 if self.compared is None else self.compared.digest()

        def combined(values: list[bytes]) -> bytes:
            decoded, digests, abouts = zip(*map(json.loads, values), strict=True)
            if len({*abouts}) > 1:
                return json.dumps([None, False, abouts]).encode()
            result = combine([*decoded])
            return json.dumps([result, len({*digests}) == 1, None]).encode()

        encoded = json.dumps([value, digest, about]).encode()
        result, are_equal, abouts = json.loads(
            self._round_of(encoded, combined, more_patience_secs)
        )
        if abouts is not None:
            raise ValueError(self._unlike(abouts))
        self._compare(are_equal)
        return result

    def _unlike(self, abouts: Sequence[str]) -> str:
        received = "; ".join(
            f"host {host} has come to {about}" for host, about in enumerate(abouts)
        )
        return (
            "All hosts must make the same calls in the same order in "
            f"{self._subject}. Received: {received}. Make a call on every "
            "host or on none."
        )

    def _compare(self, are_equal: bool) -> None:
        compared = self.compared
        if compared is None:
            return
        if not are_equal:
            self.compared = None
            raise compared.error(self.gather(compared.facts()))
        compared.is_equal()

    def gather(
        self, value: Any, about: str = "", more_patience_secs: float = 0.0
    ) -> list[Any]:
        """Returns all processes' values, which JSON can represent, in their order."""
        values: list[Any] = self.agree(value, _once_if_equal, about, more_patience_secs)
        if len(values) == 1 and self._active_membership is not None:
            return values * self._active_membership.count
        return values

    def gather_bytes(self, value: bytes) -> list[bytes]:
        """Returns the bytes of all processes, in their order, and compares nothing."""
        if self._active_membership is None:
            return [value]
        joined = self._round_of(value, _join)
        return _split(joined)

    def from_chief(self, choice: Callable[[], Any], about: str = "") -> Any:
        """Returns the chief's choice in all processes; only the chief makes it."""
        return self.agree(choice() if self._is_chief else None, _first, about)

    def by_chief(self, action: Callable[[], T], about: str = "") -> T:
        """Runs an action in the chief; the others receive its result's JSON form."""
        membership = self._active_membership
        if membership is None:
            return action()
        if not self._is_chief:
            return cast("T", self.agree(None, _first, about))
        with (
            membership.watch.busy(f"does its part of {self._subject}"),
            membership.acting_alone(),
        ):
            result = action()
        self.agree(json.loads(json.dumps(result, default=str)), _first, about)
        return result

    def any(self, is_so: bool, about: str = "") -> bool:
        """Returns whether a condition holds in any process."""
        return bool(self.agree(is_so, any, about))

    def barrier(self, about: str = "", more_patience_secs: float = 0.0) -> None:
        """Waits until all processes have called it."""
        self.agree(None, _first, about, more_patience_secs)

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """Raises a `ValueError` in all processes if their facts, by name, differ."""
        values = self.gather(dict(facts))
        names = dict.fromkeys(
            name for facts_of_host in values for name in facts_of_host
        )
        self.raise_if_unlike(values, names)

    def raise_if_unlike(
        self, facts: Sequence[Mapping[str, Any]], names: Iterable[str]
    ) -> None:
        """Raises a `ValueError` if the processes' facts of these names differ."""
        for name in names:
            values = [facts_of_host.get(name) for facts_of_host in facts]
            if any(value != values[0] for value in values):
                by_host = "; ".join(
                    f"host {host} has {value!r}" for host, value in enumerate(values)
                )
                raise ValueError(
                    f"All {len(facts)} hosts must have the same {name} for "
                    f"{self._subject}. Received: {by_host}. Run the same "
                    "program with the same arguments and packages on each."
                )

    def reported_errors(
        self, subject: str | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Reports a block's error to the others; none has to end if all report one."""
        if self._active_membership is None:
            return contextlib.nullcontext()
        return self._active_membership.reported_errors(
            self._name, subject or self._subject
        )

    def close(self) -> None:
        """Ends the exchange and its waits here; the last process deletes its values."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        if self._membership is None:
            return
        store, folder = self._membership.store, f"{_FOLDER}/{self._name}"
        # Without the coordinator there is nothing to delete.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            if store.increment(f"{folder}/closed") == self._membership.count:
                store.delete(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def _is_chief(self) -> bool:
        return self._membership is None or self._membership.index == 0

    def _round_of(
        self,
        value: bytes,
        combine: Callable[[list[bytes]], bytes],
        more_patience_secs: float = 0.0,
    ) -> bytes:
        """Returns the result of the last process to arrive in this round."""
        membership = self._active_membership
        if membership is None:
            return combine([value])
        self._round += 1
        with membership.lost_contact():
            arrived = self._arrive(membership, value)
            if arrived == membership.count:
                values = membership.store.read_folder(self._values())
                result = combine([values[host] for host in sorted(values)])
                membership.store.write(self._result(), result)
                return result
            if arrived == 1:
                # All processes have read the result of the round before the
                # last one: they have all arrived in the last one.
                membership.store.delete(self._folder(self._round - 2))
            patience = self._patience_secs + more_patience_secs
            return self._wait_for_result(membership, patience)

    def _arrive(self, membership: Membership, value: bytes) -> int:
        """Writes a value, and returns how many processes have done so."""
        # A value that is written after the end would never be deleted.
        with self._closing:
            self._check_open()
            membership.store.write(f"{self._values()}/{membership.index}", value)
            total = membership.store.increment(f"{_FOLDER}/{self._name}/arrived")
        # The count is that of all rounds, because resetting it would need a round.
        return total - (self._round - 1) * membership.count

    def _folder(self, number: int) -> str:
        return f"{_FOLDER}/{self._name}/{number}"

    def _values(self) -> str:
        return f"{self._folder(self._round)}/values"

    def _result(self) -> str:
        return f"{self._folder(self._round)}/result"

    def _check_open(self) -> None:
        if self._is_closed:
            raise HostError("This exchange has ended.")

    def _wait_for_result(self, membership: Membership, patience: float) -> bytes:
        """Reads the result, unless a process fails or is too late."""
        until = time.monotonic() + patience
        interval = max(_LOOK_MSECS, _LOOK_MSECS_PER_PROCESS * membership.count)
        while True:
            result = membership.store.read(self._result(), interval)
            if result is not None:
                return result
            membership.check()
            self._check_open()
            ended = membership.ended()
            if ended:
                for host in self._missing(membership):
                    if host in ended:
                        membership.raise_ended(host, ended[host], self._subject)
            if time.monotonic() > until:
                for host in self._missing(membership):
                    self._check_busy(membership, host, patience)
                until = time.monotonic() + patience

    def _missing(self, membership: Membership) -> list[int]:
        """Returns the processes that have not arrived in this round."""
        arrived = membership.store.read_folder(self._values())
        return [host for host in range(membership.count) if host not in arrived]

    def _check_busy(self, membership: Membership, host: int, patience: float) -> None:
        """Raises an error unless a missing process reports what it is doing."""
        busy = membership.watch.is_busy(host)
        if busy is not None:
            _logger.warning("Waiting for host %d, which %s and is alive.", host, busy)
            return
        membership.check_gone()
        raise membership.error(
            Problem(
                f"Host {host} did not answer about {self._subject} within "
                f"{patience:.0f} seconds, though it may be alive. It is stuck, "
                "slow, or runs something else: every host must make the same "
                "calls in the same order. Look at its log, or wait longer with "
                "RunConfig(host_timeout_secs=...).",
                host,
                is_reachable=True,
            )
        )


def _first(values: list[Any]) -> Any:
    return values[0]


def _once_if_equal(values: list[Any]) -> list[Any]:
    """Returns the values, or the first one if all are equal."""
    return values[:1] if all(v == values[0] for v in values) else values


def _join(values: list[bytes]) -> bytes:
    """Joins different values, after their sizes and each process's value number."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    sizes = [len(value) for value in numbers]
    head = json.dumps([sizes, [numbers[value] for value in values]]).encode()
    return b"\n".join([head, b"".join(numbers)])


def _split(joined: bytes) -> list[bytes]:
    """Splits the result of `_join`."""
    head, _, values = joined.partition(b"\n")
    sizes, numbers = json.loads(head)
    ends = itertools.accumulate(sizes, initial=0)
    different = [values[start:end] for start, end in itertools.pairwise(ends)]
    return [different[number] for number in numbers]
