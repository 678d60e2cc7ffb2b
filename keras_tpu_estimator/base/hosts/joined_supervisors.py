"""The supervisors that have joined a job, as its leader sees them."""

import contextlib
import queue
import socket
import sys
import threading
import time
from typing import TypeAlias

from keras_tpu_estimator.base.hosts.supervisor_connection import (
    Connection,
    End,
    Join,
    Message,
)

_Event: TypeAlias = tuple[Connection, Message | None]
_END_SECS = 10.0


class JoinedSupervisors:
    """Accepts supervisors, and receives their messages.

    Args:
        listener: A listening socket.
        count: The number of processes of the job.
        timeout: Seconds after which a silent supervisor counts as lost.
    """

    def __init__(self, listener: socket.socket, count: int, timeout: float):
        self._listener = listener
        self._count = count
        self._timeout = timeout
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._by_number: dict[int, Connection] = {}
        self._starts = 0

    @property
    def numbers(self) -> set[int]:
        """The numbers of their processes."""
        return {*self._by_number}

    @property
    def starts(self) -> int:
        """The most starts that one of them has seen before it joined."""
        return self._starts

    def connection(self, number: int) -> Connection:
        """Returns the connection to the supervisor of a process."""
        return self._by_number[number]

    def start(self) -> None:
        """Begins to accept supervisors, on a thread."""
        threading.Thread(target=self._accept, daemon=True).start()

    def next_event(self, deadline: float) -> _Event | None:
        """Returns the next message and its sender; `None` if none comes in time.

        The message is `None` for a supervisor that is lost.
        """
        try:
            event = self._events.get(timeout=max(deadline - time.monotonic(), 0))
        except queue.Empty:
            return None
        connection, message = event
        if isinstance(message, Join):
            self._join(connection, message)
        elif message is None:
            self._by_number = {
                number: joined
                for number, joined in self._by_number.items()
                if joined is not connection
            }
        return event

    def end(self, code: int) -> None:
        """Tells all the exit code of the job, and waits until they have read it."""
        for connection in self._by_number.values():
            connection.send(End(code))
        deadline = time.monotonic() + _END_SECS
        while self._by_number and self.next_event(deadline):
            pass

    def close(self) -> None:
        """Ends all connections."""
        # Closing alone would not wake the thread that accepts.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._by_number.values():
            connection.close()

    def _accept(self) -> None:
        # The listener is closed at the end of the job.
        with contextlib.suppress(OSError):
            while True:
                self._listen(self._listener.accept()[0])

    def _listen(self, sock: socket.socket) -> None:
        connection = Connection(sock, self._timeout)
        connection.listen(lambda message: self._events.put((connection, message)))

    def _join(self, connection: Connection, message: Join) -> None:
        is_valid = 0 <= message.number < self._count
        if is_valid and message.number not in self._by_number:
            self._by_number[message.number] = connection
            self._starts = max(self._starts, message.starts)
            return
        if not is_valid:
            sys.stderr.write(
                f"A supervisor wants to be process {message.number} of {self._count}, "
                "and is rejected. Start all with the same number of processes.\n"
            )
        # Until its earlier connection has ended, another supervisor tries again.
        connection.close()
