"""Failures of processes, and which of them end all processes.

Each process publishes an error that leaves a call which all processes make
together. If all of them fail in the same call, none has to end: their state is
that before the call, and each program may catch its error.
"""

import collections
import dataclasses
import signal

import jax

from keras_tpu_estimator.base.common.system import RETRY_CODE
from keras_tpu_estimator.base.hosts.store import Store


class HostError(RuntimeError):
    """Another process of a training with several processes has failed.

    It raised an error, ended, or stopped responding. Restart all processes, and
    training resumes from the latest checkpoint.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> issubclass(kte.HostError, RuntimeError)
    True
    """


_FOLDER = "failed"
# Errors that depend on the arguments of a program more than on its storage.
_OF_ARGUMENTS = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


# XLA's names of errors that would happen again, such as too little memory.
_OF_PROGRAMS = (
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "OUT_OF_RANGE",
    "RESOURCE_EXHAUSTED",
    "UNIMPLEMENTED",
)


def code_of(error: BaseException) -> int:
    """Returns the exit code for an uncaught error: whether a restart may help.

    The causes of an error also count, such as that of a save.
    """
    if isinstance(error, jax.errors.JaxRuntimeError):
        return 1 if str(error).startswith(_OF_PROGRAMS) else RETRY_CODE
    is_of_storage = isinstance(error, OSError) and not isinstance(error, _OF_ARGUMENTS)
    if is_of_storage or isinstance(error, HostError):
        return RETRY_CODE
    return 1 if error.__cause__ is None else code_of(error.__cause__)


@dataclasses.dataclass(frozen=True)
class Failure:
    """The error of one process: a sentence for the others' logs, and an exit code."""

    host: int
    text: str
    code: int = 1

    @classmethod
    def from_error(cls, host: int, subject: str, error: BaseException) -> "Failure":
        """Returns the failure for an error in `subject`."""
        if isinstance(error, SystemExit):
            code = exit_code(error)
            text = f"Host {host} has left {subject} with exit code {code}."
            return cls(host, text, code)
        first, *_ = [*str(error).strip().splitlines(), ""]
        text = f"Host {host} has failed in {subject}: {type(error).__name__}: "
        if isinstance(error, KeyboardInterrupt):
            return cls(host, text + first, 128 + signal.SIGINT)
        return cls(host, text + first, code_of(error))


def exit_code(error: SystemExit) -> int:
    """Returns the exit code of a process that ends with this error."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


@dataclasses.dataclass(frozen=True)
class Problem:
    """A reason, in sentences, why this process must end because of another one.

    Attributes:
        host: The process that caused it; `None` if unknown.
        is_reachable: Whether that process is alive and reads what others publish.
        is_end: Whether its program has reached its end.
    """

    text: str
    host: int | None
    code: int = RETRY_CODE
    is_reachable: bool = False
    is_end: bool = False


class Failures:
    """The published failures of all processes, by call.

    A failure ends the processes in which the same call has not failed; if it has failed
    in all, each program may continue.
    """

    def __init__(self, index: int, count: int, store: Store):
        self._index = index
        self._count = count
        self._store = store
        # The calls that failed in this process.
        self._calls: set[str] = set()

    def publish(self, call: str, failure: Failure) -> None:
        """Publishes the failure of a call, which has the same name in all processes."""
        self._calls.add(call)
        value = [failure.text, failure.code]
        self._store.publish(f"{_FOLDER}/{call}", self._index, value)

    def only_here(self) -> Failure | None:
        """Returns a failure of this process in a call that others completed."""
        for failures in self._published().values():
            own_failures = [
                failure for failure in failures if failure.host == self._index
            ]
            if own_failures and len(failures) < self._count:
                return own_failures[0]
        return None

    def of_others(self) -> list[Failure]:
        """Returns the failures of calls that did not fail here, by process."""
        failures_of_others = []
        for call, failures in self._published().items():
            if len(failures) == self._count:
                # All processes failed in this call, so none has to end.
                self._store.delete(f"{_FOLDER}/{call}")
            if call not in self._calls:
                failures_of_others += failures
        return sorted(failures_of_others, key=lambda failure: failure.host)

    def _published(self) -> dict[str, list[Failure]]:
        """Returns the failures of all processes by call."""
        calls: dict[str, list[Failure]] = collections.defaultdict(list)
        for name, value in self._store.published(_FOLDER).items():
            call, _, host = name.rpartition("/")
            calls[call].append(Failure(int(host), *value))
        return calls
