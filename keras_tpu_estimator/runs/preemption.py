"""Stopping at the end of a loop after a signal, such as one of a preemption."""

import dataclasses
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from keras_tpu_estimator.base.hosts.host_exchange import HostExchange

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class LoopEnd:
    """The continuation of training after a loop.

    `runs_ahead` means that the next loop begins before this one is complete. `due`
    names the actions that are due by the clock of any host.
    """

    stops: bool
    runs_ahead: bool
    due: frozenset[str] = frozenset()


class Preemption:
    """The end of training after a signal inside a `with` block."""

    def __init__(self) -> None:
        self._signals = StopSignals()

    def is_requested(self) -> bool:
        """Returns whether a signal has arrived."""
        return self._signals.received is not None

    def agree(self, exchange: HostExchange, end_here: LoopEnd) -> LoopEnd:
        """Returns how all hosts continue, while the devices still run the loop."""
        waits, received = not end_here.runs_ahead, self._signals.received or 0
        (stops, waits, received), due = exchange.agree(
            [[end_here.stops, waits, received], [*end_here.due]],
            _together,
            "the end of a loop",
        )
        if received:
            self._signals.received = signal.Signals(received)
        return LoopEnd(bool(received or stops), not waits, frozenset(due))

    def __enter__(self) -> Self:
        self._signals.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._signals.__exit__(*exception)

    def exit_if_requested(self, latest: Callable[[], str | None]) -> None:
        """Ends the script if a signal has arrived, and logs the latest checkpoint.

        Raises:
            SystemExit: Its code is 128 plus the number of the signal.
            KeyboardInterrupt: The signal was SIGINT in an interactive session,
                which continues.
        """
        received = self._signals.received
        if received is None:
            return
        checkpoint = latest()
        _logger.warning(
            "Training has stopped because of %s. %s",
            received.name,
            f"The latest checkpoint is {checkpoint}."
            if checkpoint
            else "No checkpoint exists.",
        )
        if is_for_prompt(received):
            raise KeyboardInterrupt
        sys.exit(128 + received)


def _together(values: list[tuple[list[int], list[str]]]) -> list[Any]:
    """Returns the maximum of each number, and all names."""
    numbers, names = zip(*values, strict=True)
    most = [max(column) for column in zip(*numbers, strict=True)]
    return [most, sorted({name for some in names for name in some})]


# The signals, and Python's handlers of them.
_PYTHONS = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}
# Ctrl-Break is the only signal with which a process on Windows can ask another one
# to stop. SIGTERM ends a process at once there.
if hasattr(signal, "SIGBREAK"):
    _PYTHONS[signal.SIGBREAK] = signal.SIG_DFL


class StopSignals:
    """Signal handlers in a `with` block, where only a second signal ends the process.

    Python runs handlers in the main thread when it next runs Python code. Because that
    thread mostly waits for the devices, a separate thread also watches for signals.

    Handlers of other code remain in place, and a block outside the main thread changes
    nothing. Forked processes have the usual handlers. A block inside another one
    receives the signals of the outer block.
    """

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._outer: StopSignals | None = None
        self._replaced: dict[int, Any] = {}
        self._writer: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def received(self) -> signal.Signals | None:
        """The first signal, or `None`."""
        if self._received is None and self._outer is not None:
            return self._outer.received
        return self._received

    @received.setter
    def received(self, number: signal.Signals) -> None:
        self._received = number

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._outer = _ACTIVE[-1] if _ACTIVE else None
        for number, pythons in _PYTHONS.items():
            if signal.getsignal(number) == pythons:
                self._replaced[number] = signal.signal(number, self._handle)
        if self._replaced:
            self._start_watching()
            _ACTIVE.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._replaced:
            return
        self.put_back()
        _ACTIVE.remove(self)
        if self._thread is not None and self._writer is not None:
            self._writer.close()
            self._thread.join()

    def put_back(self) -> None:
        """Restores the earlier handlers."""
        if self._writer is not None:
            signal.set_wakeup_fd(-1)
        for number, handler in self._replaced.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Logging here could interrupt the logging of another line.
        del frame
        if self.received is not None:
            _stop_at_once(number)
        self.received = signal.Signals(number)

    def _start_watching(self) -> None:
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if before != -1:  # An event loop's descriptor must remain.
            signal.set_wakeup_fd(before)
            reader.close()
            writer.close()
            return
        self._writer = writer
        self._thread = threading.Thread(
            target=self._watch, args=(reader,), name="signals", daemon=True
        )
        self._thread.start()

    def _watch(self, reader: socket.socket) -> None:
        """Reads the numbers of signals as they arrive."""
        is_first = True
        with reader:
            while data := reader.recv(1):
                number = data[0]
                if number not in self._replaced:
                    continue
                if not is_first and not is_for_prompt(number):
                    os._exit(128 + number)
                is_first = False
                _logger.warning(
                    "%s: training stops at the end of this loop. A "
                    "second signal stops it at once.",
                    signal.Signals(number).name,
                )


def is_for_prompt(number: int) -> bool:
    """Returns whether a signal must return to an interactive prompt."""
    # Interactive sessions of Python and Jupyter have this attribute.
    return number == signal.SIGINT and hasattr(sys, "ps1")


def _stop_at_once(number: int) -> None:
    if is_for_prompt(number):
        raise KeyboardInterrupt
    # After an exception, cleanup code may wait for threads.
    os._exit(128 + number)


# The active blocks, for processes that are forked inside them.
_ACTIVE: list[StopSignals] = []


def _put_back_in_child() -> None:
    for signals in _ACTIVE:
        signals.put_back()


# The first SIGTERM must end the processes of a pool.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_put_back_in_child)
