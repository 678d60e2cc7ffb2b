"""What makes hosts fail, and which failures end all of them.

Each tells the others of an error that leaves a call which all make together.
If all have one of the same call, they are where they were before it, and none
of them has to end: a program may catch its errors, on all hosts alike.
"""

import collections
import dataclasses
import signal

from keras_tpu_estimator.ground.hosts.store import Store

_FOLDER = "failed"


@dataclasses.dataclass(frozen=True)
class Failure:
    """What made a host fail.

    Attributes:
        text: What it says of it, as a sentence.
        code: The exit code that belongs to it.
    """

    host: int
    text: str
    code: int = 1

    @classmethod
    def of(cls, host: int, subject: str, error: BaseException) -> "Failure":
        """That of an error.

        Args:
            host: The number of the host.
        """
        if isinstance(error, SystemExit):
            code = exit_code(error)
            text = f"Host {host} has left {subject} with exit code {code}."
            return cls(host, text, code)
        first, *_ = [*str(error).strip().splitlines(), ""]
        text = f"Host {host} has failed in {subject}: {type(error).__name__}: "
        if isinstance(error, KeyboardInterrupt):
            return cls(host, text + first, 128 + signal.SIGINT)
        return cls(host, text + first)


def exit_code(error: SystemExit) -> int:
    """The code of a process that ends by this.

    Example:

    >>> [exit_code(SystemExit(code)) for code in (None, 3, "an error")]
    [0, 3, 1]
    """
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


class Failures:
    """The failures of all hosts.

    Args:
        index: The number of this one.
    """

    def __init__(self, index: int, count: int, store: Store):
        self._index = index
        self._count = count
        self._store = store
        # The calls that have failed here.
        self._calls: set[str] = set()

    def tell(self, call: str, failure: Failure) -> None:
        """Tells the others why a call has failed here.

        Args:
            call: The call, by the same name on all hosts.
        """
        self._calls.add(call)
        value = [failure.text, failure.code]
        self._store.publish(f"{_FOLDER}/{call}", self._index, value)

    def of_this_host_alone(self) -> Failure | None:
        """One of this host of a call that has not failed everywhere."""
        for told in self._told().values():
            own = [each for each in told if each.host == self._index]
            if own and len(told) < self._count:
                return own[0]
        return None

    def of_others(self) -> list[Failure]:
        """Those of calls that have not failed here, too; by host."""
        found = []
        for call, told in self._told().items():
            if len(told) == self._count:
                # Nobody needs it any more.
                self._store.delete(f"{_FOLDER}/{call}")
            if call not in self._calls:
                found += told
        return sorted(found, key=lambda each: each.host)

    def _told(self) -> dict[str, list[Failure]]:
        """Those of all hosts by call."""
        calls: dict[str, list[Failure]] = collections.defaultdict(list)
        for name, value in self._store.published(_FOLDER).items():
            call, _, host = name.rpartition("/")
            calls[call].append(Failure(int(host), *value))
        return calls
