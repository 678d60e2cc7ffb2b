"""What hosts say to each other about one subject, without any device.

It travels through the store of JAX's coordination service, so that a thread may
talk with its like while the devices are at work. A process that is alone talks
with itself, at once.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Protocol
from typing import Self
from typing import TypeVar
from typing import cast

import jax

from keras_tpu_estimator.ground.hosts.errors import HostError
from keras_tpu_estimator.ground.hosts.membership import Membership
from keras_tpu_estimator.ground.hosts.problem import Problem

_logger = logging.getLogger("keras_tpu_estimator")

_FOLDER = "said"
# Between two looks at whether another host has failed.
_LOOK_MSECS = 500

T = TypeVar("T")


class Compared(Protocol):
    """Something that has to be equal on all hosts whenever they talk."""

    def digest(self) -> int:
        """A number that is equal where it is."""

    def facts(self) -> dict[str, Any]:
        """What the digest is of, in what JSON can write."""

    def is_equal(self) -> None:
        """Told that it is."""

    def error(self, said: Sequence[Mapping[str, Any]]) -> Exception:
        """The error where it is not, of the facts of each host."""


class HostExchange:
    """What hosts say to each other about one subject, in rounds.

    All of them say the same kind of thing in the same order, each on one
    thread at a time. What they have said is forgotten when all have closed it.

    Args:
        membership: What this process has with the others; `None` if it is
            alone.
        subject: What it is about. All hosts begin those about one subject in
            the same order.
        patience_secs: How long a host is waited for before it is taken for
            stuck. Defaults to 30.

    Attributes:
        compared: What has to be equal in each round. Defaults to nothing.

    Example:

    >>> with HostExchange(None, "greetings") as exchange:
    ...     exchange.gather("hello")
    ['hello']
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
        """Whether there are other hosts."""
        return self._others is not None

    @property
    def _others(self) -> Membership | None:
        """What this process has with others, unless it acts alone now."""
        membership = self._membership
        if membership is None or membership.is_apart:
            return None
        return membership

    def gather(self, value: Any, more_patience_secs: float = 0.0) -> list[Any]:
        """What each host says.

        Args:
            value: What this one says: anything that JSON can write.

        Raises:
            HostError: Another host has failed, is gone or does not answer.
            ValueError: What is `compared` is not equal.
        """
        if self._others is None:
            return [value]
        compared = self.compared
        digest = 0 if compared is None else compared.digest()
        said = self._gathered([value, digest], more_patience_secs)
        if compared is not None:
            if len({each for _, each in said}) > 1:
                raise compared.error(self._gathered(compared.facts()))
            compared.is_equal()
        return [each for each, _ in said]

    def gather_bytes(
        self, value: bytes, more_patience_secs: float = 0.0
    ) -> list[bytes]:
        """As `gather`, for bytes, and without comparing anything."""
        others = self._others
        if others is None:
            return [value]
        self._round += 1
        patience = self._patience_secs + more_patience_secs
        with others.lost_contact():
            self._say(others, value)
            said = [
                value
                if host == others.index
                else self._answer(others, host, patience)
                for host in range(others.count)
            ]
            # All have come to this round, and so have read the last one.
            if self._round > 1:
                others.store.unsay(self._key(others.index, ago=1))
        return said

    def chiefs(self, choice: Callable[[], Any]) -> Any:
        """What the chief chooses, on all hosts.

        Args:
            choice: Makes the choice, on the chief alone.
        """
        return self.gather(choice() if self._is_chief else None)[0]

    def by_chief(self, action: Callable[[], T]) -> T:
        """Has the chief do something alone, for which the others wait.

        Returns:
            What it returned; on other hosts, what JSON can tell of that.
        """
        others = self._others
        if others is None:
            return action()
        result = None
        if self._is_chief:
            with (
                others.watch.busy(f"does its part of {self._subject}"),
                others.acting_alone(),
            ):
                result = action()
        told = json.loads(json.dumps(result, default=str))
        said = self.gather(told)
        return cast("T", result if self._is_chief else said[0])

    def any(self, is_so: bool) -> bool:
        """Whether it is so on any host."""
        return any(self.gather(is_so))

    def barrier(self, more_patience_secs: float = 0.0) -> None:
        """Waits until all hosts have come here."""
        self.gather(None, more_patience_secs)

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """Checks that all hosts say the same; all raise if they do not.

        Args:
            facts: What has to be equal, by its name.

        Raises:
            ValueError: Some facts differ.
        """
        said = self.gather(dict(facts))
        self.raise_if_unlike(said, dict.fromkeys(n for e in said for n in e))

    def raise_if_unlike(
        self, said: Sequence[Mapping[str, Any]], names: Iterable[str]
    ) -> None:
        """Raises an error if hosts have said different things.

        Args:
            said: What each has said, by name.
            names: The names of what has to be equal.

        Raises:
            ValueError: Some facts differ.
        """
        for name in names:
            values = [each.get(name) for each in said]
            if any(value != values[0] for value in values):
                by_host = "; ".join(
                    f"host {host} has {value!r}"
                    for host, value in enumerate(values)
                )
                raise ValueError(
                    f"All {len(said)} hosts should have the same {name} for "
                    f"{self._subject}. Received: {by_host}. Run the same "
                    "program with the same arguments and packages on each."
                )

    def told_of_errors(
        self, subject: str | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Tells the other hosts of what ends the `with` block badly.

        If all of them tell of errors in this conversation, they may go on.

        Args:
            subject: What has failed then. Defaults to that of this one.
        """
        if self._others is None:
            return contextlib.nullcontext()
        return self._others.told_of_errors(self._name, subject or self._subject)

    def close(self) -> None:
        """Says nothing more; a thread that waits for an answer gives up.

        When all hosts have closed it, what they have said is removed.
        """
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        if self._membership is None:
            return
        store, folder = self._membership.store, f"{_FOLDER}/{self._name}"
        # Without the coordinator, nothing is left.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            store.tell(f"{folder}/closed", self._membership.index)
            if len(store.told(f"{folder}/closed")) == self._membership.count:
                store.unsay(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def _is_chief(self) -> bool:
        return self._membership is None or self._membership.index == 0

    def _gathered(
        self, value: Any, more_patience_secs: float = 0.0
    ) -> list[Any]:
        said = json.dumps(value).encode()
        return [
            json.loads(each)
            for each in self.gather_bytes(said, more_patience_secs)
        ]

    def _key(self, host: int, ago: int = 0) -> str:
        return f"{_FOLDER}/{self._name}/{self._round - ago}/{host}"

    def _say(self, others: Membership, value: bytes) -> None:
        """Says something, unless nobody removes it any more."""
        with self._closing:
            self._check_open()
            others.store.say(self._key(others.index), value)

    def _check_open(self) -> None:
        if self._is_closed:
            raise HostError("This conversation has ended.")

    def _answer(self, others: Membership, host: int, patience: float) -> bytes:
        """What a host says, unless it fails or does not say it in time."""
        until = time.monotonic() + patience
        while True:
            said = others.store.heard(self._key(host), _LOOK_MSECS)
            if said is not None:
                return said
            others.check()
            self._check_open()
            if others.has_ended(host):
                # It may have said it before.
                said = others.store.heard(self._key(host), _LOOK_MSECS)
                if said is not None:
                    return said
                others.check_ended(host, self._subject)
            if time.monotonic() > until:
                self._check_busy(others, host, patience)
                until = time.monotonic() + patience

    def _check_busy(
        self, others: Membership, host: int, patience: float
    ) -> None:
        """Checks that a host that does not answer has said why."""
        busy = others.watch.is_busy(host)
        if busy is not None:
            _logger.warning(
                "Waiting for host %d, which %s and is alive.", host, busy
            )
            return
        others.check_gone()
        raise others.error(
            Problem(
                f"Host {host} should say something about {self._subject} "
                f"within {patience:.0f} seconds. Received nothing, though it "
                "may be alive: it is stuck, slow, or does something else. Look "
                "into its log, or wait longer with "
                "RunConfig(host_timeout_secs=...).",
                host,
            )
        )
