"""Watching over the other processes, on a thread of its own.

A process that waits for a device which waits for a dead process never comes
back. So each tells that it is alive, what it has come to, and what keeps it;
and each learns when another one is gone, or stuck.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax

from keras_tpu_estimator.ground.hosts.problem import Problem
from keras_tpu_estimator.ground.hosts.store import Store

_FOLDER = "alive"
_BEAT_SECS = 1.0
# After an error of the devices: who misses so many beats is the reason.
_DIAGNOSIS_BEATS = 5


class Watch:
    """What this process knows of the others' lives.

    Args:
        index: The number of this process.
        told: What hosts have told of their ends.
        end: Called with a problem, on the thread of the watch; when it
            returns, watching goes on.

    Attributes:
        patience_secs: How long a host may be silent, or behind.
        runs: How many runs this process has given to its devices.
    """

    def __init__(
        self,
        index: int,
        count: int,
        store: Store,
        told: Callable[[], Problem | None],
        end: Callable[[Problem], None],
    ):
        self._index = index
        self._count = count
        self._store = store
        self._told = told
        self._end = end
        # Before an estimator says more, JAX itself notices who is gone.
        self.patience_secs = math.inf
        self.runs = 0
        self._beats = 0
        # What this process does that takes its time, the innermost last.
        self._busy: list[str] = []
        # By host: its last news, and when they came.
        self._news: dict[int, tuple[Any, float]] = {}
        self._behind: dict[int, tuple[int, float]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="watch", daemon=True
        )

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread.

        One that is inside JAX when the interpreter ends aborts the process.
        """
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def is_over_within(self, secs: float) -> bool:
        """Waits; whether watching has ended meanwhile."""
        return self._is_over.wait(secs)

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Has others wait longer, as long as this process is alive.

        Args:
            what: What it does in the `with` block, such as "reads a file".
        """
        self._busy.append(what)
        self._beat()
        try:
            yield
        finally:
            self._busy.remove(what)
            self._beat()

    def is_busy(self, host: int) -> str | None:
        """What keeps a host, as far as it has told."""
        with _unless_gone():
            news = self._store.told_by_host(_FOLDER).get(host)
            return news and news[2]
        return None

    def silent_now(self) -> list[int]:
        """The hosts that say nothing for some seconds."""
        limit = time.monotonic() - _DIAGNOSIS_BEATS * _BEAT_SECS
        known = [h for h, (_, since) in [*self._news.items()] if since < limit]
        if known:
            return sorted(known)
        silent = [host for host in range(self._count) if host != self._index]
        before = self._store.told_by_host(_FOLDER)
        for _ in range(_DIAGNOSIS_BEATS):
            time.sleep(_BEAT_SECS)
            after = self._store.told_by_host(_FOLDER)
            silent = [h for h in silent if before.get(h) == after.get(h)]
            # Nobody waits longer where all are alive.
            if not silent:
                break
        return silent

    def _run(self) -> None:
        while not self._is_over.is_set():
            problem = self.look()
            # Others may be gone once all have said that they are done.
            if problem is not None and not self._is_over.is_set():
                self._end(problem)
            self._is_over.wait(_BEAT_SECS)

    def look(self) -> Problem | None:
        """Tells that this process is alive; why it has to end, if it has to."""
        try:
            self._tell()
            alive = self._store.told_by_host(_FOLDER)
            told = self._told()
        except jax.errors.JaxRuntimeError as error:
            return Problem(
                "Host 0, through which all others talk, is gone: "
                f"{str(error).splitlines()[0]}.",
                host=0,
            )
        now = time.monotonic()
        return told or self._silent(alive, now) or self._stuck(alive, now)

    def _tell(self) -> None:
        self._beats += 1
        busy = self._busy[-1] if self._busy else None
        news = [self._beats, self.runs, busy]
        self._store.tell(_FOLDER, self._index, news)

    def _beat(self) -> None:
        """Tells at once what is new here."""
        with _unless_gone():
            self._tell()

    def _silent(self, alive: dict[int, Any], now: float) -> Problem | None:
        for host in range(self._count):
            news = alive.get(host)
            if host not in self._news or self._news[host][0] != news:
                self._news[host] = (news, now)
            elif now - self._news[host][1] > self.patience_secs:
                return Problem(
                    f"Host {host} of {self._count} has not been heard of for "
                    f"{self.patience_secs:.0f} seconds: it is gone.",
                    host,
                )
        return None

    def _stuck(self, alive: dict[int, Any], now: float) -> Problem | None:
        """A host that has not given its devices what others have given theirs.

        Others wait for its devices then, and cannot be asked.
        """
        most = max(runs for _, runs, _ in alive.values())
        for host, (_, runs, busy) in alive.items():
            if runs == most or busy:
                self._behind.pop(host, None)
            elif self._behind.get(host, (None, 0.0))[0] != runs:
                self._behind[host] = (runs, now)
            elif now - self._behind[host][1] > self.patience_secs:
                return Problem(
                    f"Host {host} of {self._count} is alive, but stuck: its "
                    f"devices were given {runs} runs, and those of others "
                    f"{most}, for {self.patience_secs:.0f} seconds.",
                    host,
                )
        return None


def _unless_gone() -> contextlib.AbstractContextManager[None]:
    """Leaves it to others to say that the coordinator is gone."""
    return contextlib.suppress(jax.errors.JaxRuntimeError)
