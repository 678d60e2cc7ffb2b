"""Signals to a command that starts processes, which it forwards to them."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

# Names, because Windows imports this module and lacks the last one.
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class ForwardedSignals:
    """The signals that this process receives in a `with` block of `active`.

    Attributes:
        received: Their numbers.
        send: Sends a signal to the processes that currently run.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.send: Callable[[int], None] = lambda _: None
        self._has_received = threading.Event()

    def wait(self, secs: float) -> bool:
        """Waits for seconds or a signal; returns whether there was one."""
        return self._has_received.wait(secs)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Receives signals in a `with` block."""
        forwarded = [
            number
            for number in (signal.Signals[name] for name in _SIGNALS)
            # `nohup` ignores this signal, and the processes inherit that.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        ]
        before = {number: signal.signal(number, self._forward) for number in forwarded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.received.append(number)
        self._has_received.set()
        self.send(number)
