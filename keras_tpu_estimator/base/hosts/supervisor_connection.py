"""Messages between the supervisors of a job, and the connections that carry them.

A message is a line of JSON. Each side also sends signs of life, so that a machine which
is lost or hangs is noticed by its silence.
"""

import contextlib
import dataclasses
import json
import socket
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, TypeAlias


@dataclasses.dataclass(frozen=True)
class Join:
    """A supervisor is ready to start its process.

    Attributes:
        number: The number of its process in the complete job.
        starts: The number of starts that it has seen.
    """

    number: int
    starts: int


@dataclasses.dataclass(frozen=True)
class Start:
    """Supervisors must start their processes.

    Attributes:
        address: The address at which these processes meet.
        count: The number of processes.
        number: The number of the receiver's process among them.
        restarts: The number of restarts of the job.
    """

    address: str
    count: int
    number: int
    restarts: int


@dataclasses.dataclass(frozen=True)
class Stop:
    """A supervisor must end the process of a start."""

    restarts: int


@dataclasses.dataclass(frozen=True)
class Ended:
    """The process of a start has ended with a shell exit code.

    Attributes:
        signals: The signals that its supervisor has received.
    """

    restarts: int
    code: int
    signals: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class End:
    """The job has ended with an exit code, and so must supervisors."""

    code: int


@dataclasses.dataclass(frozen=True)
class Alive:
    """A sign of life."""


Message: TypeAlias = Join | Start | Stop | Ended | End | Alive
_TYPES: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Join, Start, Stop, Ended, End, Alive)
}
_LONGEST_LINE = 4096
# The errors of lost connections, and of lines that contain no message.
_ERRORS = (
    OSError,
    ValueError,
    RecursionError,
    TypeError,
    KeyError,
    AttributeError,
)


class Connection:
    """A connection to another supervisor, which both sides watch.

    Args:
        sock: A connected socket.
        timeout: Seconds of silence after which the other side counts as lost.
    """

    def __init__(self, sock: socket.socket, timeout: float):
        self._socket = sock
        self._timeout = timeout
        self._is_sending = threading.Lock()
        self._closed = threading.Event()
        sock.settimeout(timeout)

    def listen(self, receive: Callable[[Message | None], None]) -> None:
        """Calls a function with each message, on a thread, and at last with `None`."""
        for work in (self._send_signs_of_life, lambda: self._read(receive)):
            threading.Thread(target=work, daemon=True).start()

    def send(self, message: Message) -> None:
        """Sends a message. The end of a lost connection is received, not raised."""
        fields = dataclasses.asdict(message)
        line = json.dumps({"type": type(message).__name__, **fields})
        with self._is_sending:
            try:
                self._socket.sendall(f"{line}\n".encode())
            except OSError:
                self.close()

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self._closed.is_set()

    def close(self) -> None:
        """Closes the connection, which both sides receive as its end."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _send_signs_of_life(self) -> None:
        while not self._closed.wait(self._timeout / 4):
            self.send(Alive())

    def _read(self, receive: Callable[[Message | None], None]) -> None:
        with self._socket, self._socket.makefile("rb") as lines:
            while (message := _next_message(lines)) is not None:
                if not isinstance(message, Alive):
                    receive(message)
        self._closed.set()
        receive(None)


def _next_message(lines: BinaryIO) -> Message | None:
    """Returns the next message; `None` after the last one, or if it is invalid."""
    try:
        # Whatever else uses this port may write anything.
        fields = json.loads(lines.readline(_LONGEST_LINE))
        kind: Any = _TYPES[fields.pop("type")]
        message: Message = kind(
            **{
                name: tuple(value) if isinstance(value, list) else value
                for name, value in fields.items()
            }
        )
    except _ERRORS:
        return None
    return message if _has_right_types(message) else None


def _has_right_types(message: Message) -> bool:
    return all(
        type(getattr(message, field.name))
        is (field.type if field.type in (int, str) else tuple)
        for field in dataclasses.fields(message)
    )
