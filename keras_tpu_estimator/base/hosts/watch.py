"""The watch over the other processes, in a separate thread.

A process that waits for the devices of a dead process waits forever. Therefore each
process publishes once a second that it is alive, how many runs it has started, and what
keeps it busy. Process 0 reads all of this, and publishes whether a process is gone or
stuck. The others read only that, so that the work of each of them does not grow with
their number.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from keras_tpu_estimator.base.hosts.failures import Problem
from keras_tpu_estimator.base.hosts.store import Store

_FOLDER = "alive"
_VERDICT = "verdict"
_BEAT_SECS = 1.0
# After a device error, the process that misses these beats is the cause.
_DIAGNOSIS_BEATS = 5
# Used until an estimator sets its own.
_PATIENCE_SECS = 120.0


class Watch:
    """A thread that publishes that its process is alive, and ends the process if it
    would wait forever for another one.

    Args:
        reported: Returns a problem that other processes have reported.
        end: Called with a problem, on the thread of the watch. When it returns, the
            watch continues.

    Attributes:
        patience_secs: How long a process may be silent or behind. Process 0's applies
            to all.
        runs: The number of runs that this process has started on its devices.
    """

    def __init__(
        self,
        index: int,
        count: int,
        store: Store,
        reported: Callable[[], Problem | None],
        end: Callable[[Problem], None],
    ):
        self._index = index
        self._count = count
        self._store = store
        self._reported = reported
        self._end = end
        self.patience_secs = _PATIENCE_SECS
        self.runs = 0
        self._beats = 0
        # The current activities of this process that take long, innermost last.
        self._busy: list[str] = []
        # By process: its last news, and when they arrived.
        self._news: dict[int, tuple[Any, float]] = {}
        self._behind: dict[int, tuple[int, float]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, which would abort the process inside JAX."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def is_over_within(self, secs: float) -> bool:
        """Waits; returns whether the watch has ended in this time."""
        return self._is_over.wait(secs)

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Makes the others wait for this process while it is alive.

        Args:
            what: The activity of the `with` block, such as "reads a file".
        """
        self._busy.append(what)
        self._beat()
        try:
            yield
        finally:
            self._busy.remove(what)
            self._beat()

    def is_busy(self, host: int) -> str | None:
        """Returns the published activity of another process, if it has one."""
        with _unless_gone():
            news = self._store.published_value(_FOLDER, host)
            return news and news[2]
        return None

    def silent_now(self) -> list[int]:
        """Returns the processes that are silent for some seconds."""
        # Process 0 has already observed this.
        limit = time.monotonic() - _DIAGNOSIS_BEATS * _BEAT_SECS
        silent_hosts = [h for h, (_, since) in [*self._news.items()] if since < limit]
        if silent_hosts:
            return sorted(silent_hosts)
        silent = [host for host in range(self._count) if host != self._index]
        before = self._store.published_by_process(_FOLDER)
        for _ in range(_DIAGNOSIS_BEATS):
            time.sleep(_BEAT_SECS)
            after = self._store.published_by_process(_FOLDER)
            silent = [h for h in silent if before.get(h) == after.get(h)]
            # All processes are alive.
            if not silent:
                break
        return silent

    def _run(self) -> None:
        while not self._is_over.is_set():
            problem = self.look()
            # Others may exit once all programs have ended.
            if problem is not None and not self._is_over.is_set():
                self._end(problem)
            self._is_over.wait(_BEAT_SECS)

    def look(self) -> Problem | None:
        """Publishes that this process is alive; returns why it must end."""
        try:
            self._publish()
            reported = self._reported()
            now = time.monotonic()
            problem = self._judge(now) if self._index == 0 else self._read_verdict(now)
        except jax.errors.JaxRuntimeError as error:
            return Problem(
                "Host 0, which coordinates the others, is gone: "
                f"{str(error).splitlines()[0]}.",
                host=0,
            )
        return reported or problem

    def _judge(self, now: float) -> Problem | None:
        """Looks at all processes, and publishes what is wrong with one."""
        alive = self._store.published_by_process(_FOLDER)
        problem = self._silent(alive, now) or self._stuck(alive, now)
        fields = None if problem is None else dataclasses.astuple(problem)
        # The number of beats shows the others that process 0 still judges.
        self._store.publish(_VERDICT, 0, [self._beats, fields])
        return problem

    def _read_verdict(self, now: float) -> Problem | None:
        """Returns the problem that process 0 has published, or its silence."""
        verdict = self._store.published_value(_VERDICT, 0)
        if verdict is not None and verdict[1] is not None:
            return Problem(*verdict[1])
        return self._silence_of(0, verdict, now)

    def _publish(self) -> None:
        self._beats += 1
        busy = self._busy[-1] if self._busy else None
        news = [self._beats, self.runs, busy]
        self._store.publish(_FOLDER, self._index, news)

    def _beat(self) -> None:
        """Publishes news at once."""
        with _unless_gone():
            self._publish()

    def _silent(self, alive: dict[int, Any], now: float) -> Problem | None:
        for host in range(self._count):
            problem = self._silence_of(host, alive.get(host), now)
            if problem is not None:
                return problem
        return None

    def _silence_of(self, host: int, news: Any, now: float) -> Problem | None:
        """Returns the problem of a process without news for too long."""
        if host not in self._news or self._news[host][0] != news:
            self._news[host] = (news, now)
        elif now - self._news[host][1] > self.patience_secs:
            return Problem(
                f"Host {host} of {self._count} has not responded for "
                f"{self.patience_secs:.0f} seconds: it is gone.",
                host,
            )
        return None

    def _stuck(self, alive: dict[int, Any], now: float) -> Problem | None:
        """Returns the problem of a process that has dispatched too few runs."""
        most = max(runs for _, runs, _ in alive.values())
        for host, (_, runs, busy) in alive.items():
            if runs == most or busy:
                self._behind.pop(host, None)
            elif self._behind.get(host, (None, 0.0))[0] != runs:
                self._behind[host] = (runs, now)
            elif now - self._behind[host][1] > self.patience_secs:
                return Problem(
                    f"Host {host} of {self._count} is alive, but stuck: it "
                    f"has started {runs} runs on its devices, and others "
                    f"{most}, for {self.patience_secs:.0f} seconds.",
                    host,
                    is_reachable=True,
                )
        return None


def _unless_gone() -> contextlib.AbstractContextManager[None]:
    """Ignores a lost coordinator, which other code reports."""
    return contextlib.suppress(jax.errors.JaxRuntimeError)
