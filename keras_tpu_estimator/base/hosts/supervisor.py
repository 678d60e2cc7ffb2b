"""A supervisor: it starts and stops the process of one host, as the leader decides."""

import functools
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from keras_tpu_estimator.base.common.system import RETRY_CODE
from keras_tpu_estimator.base.hosts.forwarding import ForwardedSignals
from keras_tpu_estimator.base.hosts.started_processes import Outcome, StartedProcesses
from keras_tpu_estimator.base.hosts.supervisor_connection import (
    Connection,
    End,
    Ended,
    Join,
    Message,
    Start,
    Stop,
)

_RETRY_SECS = 1.0
# The time between two looks at the signals of this process.
_SIGNAL_SECS = 0.5


class Supervisor:
    """Starts the process of this host again and again, until the job has ended.

    Args:
        number: The number of the process in the complete job.
        leader: Host and port of the leader.
        make: Makes the process of a start.
        wait_secs: Seconds in which the leader must be reached.
        timeout: Seconds after which a silent leader counts as lost.
        signals: The signals of this process.
    """

    def __init__(
        self,
        number: int,
        leader: tuple[str, int],
        make: Callable[[Start], StartedProcesses],
        *,
        wait_secs: float,
        timeout: float,
        signals: ForwardedSignals,
    ) -> None:
        self._number = number
        self._leader = leader
        self._make = make
        self._wait_secs = wait_secs
        self._timeout = timeout
        self._signals = signals
        self._starts = 0
        self._process: StartedProcesses | None = None
        # The latest start that must not run, or no longer.
        self._stopped = -1
        # Starts and stops come from different threads.
        self._is_changing = threading.Lock()

    def run(self) -> int:
        """Runs until the job has ended, and returns its exit code.

        The code is 75 if the leader is not reached in time.
        """
        while True:
            connection = self._connect()
            if connection is None:
                return self._left(RETRY_CODE)
            code = self._follow(connection)
            if code is not None:
                return code
            sys.stderr.write(
                "The connection to the supervisor of process 0 is lost. Waiting for "
                f"{self._wait_secs:.0f} s until it returns.\n"
            )
            self._signals.wait(_RETRY_SECS)

    def _connect(self) -> Connection | None:
        """Returns a connection to the leader; `None` if it does not answer in time."""
        deadline = time.monotonic() + self._wait_secs
        while True:
            try:
                sock = socket.create_connection(self._leader, self._timeout)
                return Connection(sock, self._timeout)
            except OSError as error:
                if self._signals.wait(_RETRY_SECS):
                    return None
                if time.monotonic() > deadline:
                    host, port = self._leader
                    sys.stderr.write(
                        "The supervisor of process 0 must be reached at "
                        f"{host}:{port}. Received: {error}. Check that it runs.\n"
                    )
                    return None

    def _follow(self, connection: Connection) -> int | None:
        """Follows the leader; returns the exit code, or `None` if it is lost."""
        inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        connection.listen(functools.partial(self._receive, inbox))
        connection.send(Join(self._number, self._starts))
        code = RETRY_CODE
        # A user's signal ends the job, which the leader announces.
        while not self._signals.received or signal.SIGINT in self._signals.received:
            try:
                message = inbox.get(timeout=_SIGNAL_SECS)
            except queue.Empty:
                continue
            if message is None:
                return None
            if isinstance(message, End):
                return message.code
            if isinstance(message, Start):
                code = self._start(message, connection)
        # This host is preempted.
        connection.close()
        return self._left(code)

    def _start(self, start: Start, connection: Connection) -> int:
        """Runs the process of a start, and returns its exit code."""
        self._starts = start.restarts + 1
        with self._is_changing:
            must_run = start.restarts > self._stopped and not connection.is_closed
            process = self._process = self._make(start) if must_run else None
        outcome = process.run() if process else Outcome(128 + signal.SIGTERM)
        with self._is_changing:
            self._process = None
        signals = (*self._signals.received,)
        connection.send(Ended(start.restarts, outcome.code, signals))
        return outcome.code

    def _receive(
        self, inbox: "queue.SimpleQueue[Message | None]", message: Message | None
    ) -> None:
        """Receives a message on another thread, while the process runs."""
        if message is None or isinstance(message, End | Stop):
            with self._is_changing:
                if isinstance(message, Stop):
                    self._stopped = message.restarts
                if self._process is not None:
                    self._process.stop()
        inbox.put(message)

    def _left(self, code: int) -> int:
        """Returns the exit code of a supervisor that leaves the job."""
        received = self._signals.received
        return 128 + received[0] if received and code in (0, RETRY_CODE) else code
