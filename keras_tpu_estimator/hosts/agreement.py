"""Values that all processes agree on, without any device.

They travel through the key-value store of JAX's coordination service, so that
a thread may agree with its like while the devices are at work. A process that
is alone agrees with itself, at once.
"""

import collections
import contextlib
import contextvars
import dataclasses
import json
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Self
from typing import TypeVar
from typing import cast

import jax

from keras_tpu_estimator.hosts import jax_internals
from keras_tpu_estimator.hosts import watch
from keras_tpu_estimator.hosts.errors import HostError

# Between two looks at whether another host has failed.
_LOOK_MSECS = 500
# Whether this process does something without the others.
_acts_alone: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "acts_alone", default=False
)
# A day: what the chief does has time limits of its own.
_LONG_SECS = 86400.0
# How often conversations about each subject were begun.
_begun: dict[str, int] = collections.defaultdict(int)


T = TypeVar("T")


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
        count: How many there are.
        patience_secs: How long one is waited for before it is taken for
            stuck.

    Example:

    >>> hosts = Hosts()
    >>> hosts.is_chief, hosts.are_several
    (True, False)
    """

    index: int = 0
    count: int = 1
    patience_secs: float = 30.0

    @classmethod
    def of_this_process(cls, patience_secs: float) -> Self:
        """Those of the cluster that this process has joined.

        Args:
            patience_secs: As above.
        """
        joined = jax_internals.joined_cluster()
        if joined is None or joined[1] == 1:
            return cls()
        _, count, index = joined
        watch.start(index, count, patience_secs)
        return cls(index, count, patience_secs)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes for all."""
        return self.index == 0

    @property
    def are_several(self) -> bool:
        """Whether there are others to agree with."""
        return self.count > 1 and not _acts_alone.get()

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator["Conversation"]:
        """A call that all hosts make; an error in it is told to all.

        Args:
            name: What is called.
        """
        with watch.told_of_errors(name), self.conversation(name) as together:
            yield together

    def conversation(self, subject: str) -> "Conversation":
        """Begins to agree on something, as all hosts do in the same order.

        Args:
            subject: What it is about.
        """
        # What the chief does alone begins none that others know of.
        if not _acts_alone.get():
            _begun[subject] += 1
        return Conversation(self, subject, _begun[subject])


class Conversation:
    """What hosts say to each other about one subject, in rounds.

    All of them say the same kind of thing in the same order, each on one
    thread at a time.

    Args:
        hosts: The hosts.
        subject: What it is about.
        number: That of conversations about it.

    Example:

    >>> with Hosts().conversation("greetings") as conversation:
    ...     conversation.gather("hello")
    ['hello']
    """

    def __init__(self, hosts: Hosts, subject: str, number: int):
        self._hosts = hosts
        self._subject = subject
        self._prefix = f"kte/{subject}/{number}"
        self._round = 0
        self._is_closed = False

    @property
    def is_with_others(self) -> bool:
        """Whether there are other hosts."""
        return self._hosts.are_several

    def gather(self, value: Any, more_patience_secs: float = 0.0) -> list[Any]:
        """What each host says.

        Args:
            value: What this one says: anything that JSON can write.
            more_patience_secs: Added to the patience. Defaults to none.

        Returns:
            A list of all values, by host.

        Raises:
            HostError: Another host has failed, is gone or does not answer.
        """
        if not self._hosts.are_several:
            return [value]
        said = json.dumps(value).encode()
        return [
            json.loads(each)
            for each in self.gather_bytes(said, more_patience_secs)
        ]

    def gather_bytes(
        self, value: bytes, more_patience_secs: float = 0.0
    ) -> list[bytes]:
        """As `gather`, for bytes."""
        hosts = self._hosts
        if not hosts.are_several:
            return [value]
        client = jax_internals.coordination_client()
        self._round += 1
        patience = hosts.patience_secs + more_patience_secs
        with watch.lost_contact():
            client.key_value_set_bytes(self._key(hosts.index), value)
            said = [
                value if host == hosts.index else self._answer(host, patience)
                for host in range(hosts.count)
            ]
            # All have read it: they are in this round or in the last.
            if self._round > 2:
                client.key_value_delete(self._key(hosts.index, ago=2))
        return said

    def chiefs(self, choice: Callable[[], Any]) -> Any:
        """What the chief chooses, on all hosts.

        Args:
            choice: Makes the choice, on the chief alone.
        """
        return self.gather(choice() if self._hosts.is_chief else None)[0]

    def by_chief(self, action: Callable[[], T]) -> T:
        """Has the chief do something alone, for which the others wait.

        Args:
            action: What to do.

        Returns:
            What it returned; on other hosts, what JSON can tell of that.
        """
        result = None
        if self._hosts.is_chief:
            token = _acts_alone.set(True)
            try:
                result = action()
            finally:
                _acts_alone.reset(token)
        told = json.loads(json.dumps(result, default=str))
        said = self.gather(told, _LONG_SECS)
        return cast("T", result if self._hosts.is_chief else said[0])

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

    def close(self) -> None:
        """Says nothing more; a thread that waits for an answer gives up."""
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _key(self, host: int, ago: int = 0) -> str:
        return f"{self._prefix}/{self._round - ago}/{host}"

    def _answer(self, host: int, patience: float) -> bytes:
        """What a host says, unless it fails or does not say it in time."""
        client = jax_internals.coordination_client()
        until = time.monotonic() + patience
        while True:
            try:
                said: bytes = client.blocking_key_value_get_bytes(
                    self._key(host), _LOOK_MSECS
                )
                return said
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
            watch.check_failures()
            if self._is_closed:
                raise HostError("This conversation has ended.")
            if time.monotonic() > until:
                watch.check_gone()
                raise HostError(
                    f"Host {host} should say something about {self._subject} "
                    f"within {patience:.0f} seconds. Received nothing, though "
                    "it may be alive: it is stuck, slow, or does something "
                    "else. Look into its log, or wait longer with "
                    "RunConfig(host_timeout_secs=...)."
                )
