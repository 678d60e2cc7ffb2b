"""Watching over the other processes, on a thread of its own.

A process that waits for a device which waits for a dead process never comes
back. So each tells that it is alive, what it has come to, and what made it
fail; and each ends if another one has.
"""

import atexit
import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from keras_tpu_estimator.hosts import jax_internals
from keras_tpu_estimator.hosts.errors import HostError

_logger = logging.getLogger("keras_tpu_estimator")

_BEAT_SECS = 1.0
# After an error of the devices: who misses so many beats is the reason.
_DIAGNOSIS_BEATS = 5
# How long a process may take to end by itself once another has failed.
_GRACE_SECS = 3.0
# How long one that has failed waits until the others have heard of it.
_PARTING_SECS = _GRACE_SECS + 2 * _BEAT_SECS
_EXIT_CODE = 1


class _Watch:
    """What this process knows of the others.

    Args:
        index: The number of this process.
        count: How many there are.
        patience_secs: How long one may be silent, or behind.
    """

    def __init__(self, index: int, count: int, patience_secs: float):
        self.index = index
        self.count = count
        self.patience_secs = patience_secs
        # How many runs this process has given to its devices.
        self.runs = 0
        self.has_failed = False
        self._beats = 0
        # By host: its last news, and when they came.
        self._news: dict[int, tuple[Any, float]] = {}
        self._behind: dict[int, tuple[int, float]] = {}
        self._client = jax_internals.coordination_client()
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
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            problem = self._look()
            # Others may be gone once all have said that they are done.
            if problem is not None and not self._is_over.is_set():
                self._end(problem)
            self._is_over.wait(_BEAT_SECS)

    def failures(self) -> str | None:
        """What other hosts have said of their failures."""
        said = dict(self._read("failed"))
        said.pop(self.index, None)
        if not said:
            return None
        return " ".join(said[host] for host in sorted(said))

    def silent_now(self) -> list[int]:
        """The hosts that say nothing for some seconds."""
        limit = time.monotonic() - _DIAGNOSIS_BEATS * _BEAT_SECS
        known = [h for h, (_, since) in [*self._news.items()] if since < limit]
        if known:
            return sorted(known)
        silent = [host for host in range(self.count) if host != self.index]
        before = dict(self._read("alive"))
        for _ in range(_DIAGNOSIS_BEATS):
            time.sleep(_BEAT_SECS)
            after = dict(self._read("alive"))
            silent = [h for h in silent if before.get(h) == after.get(h)]
            # Nobody waits longer where all are alive.
            if not silent:
                break
        return silent

    def tell(self, folder: str, value: str) -> None:
        """Tells the others something."""
        key = f"kte/{folder}/{self.index}"
        self._client.key_value_set(key, value, allow_overwrite=True)

    def tell_failure(self, subject: str, error: BaseException) -> None:
        """Tells the others what made this host fail."""
        first, *_ = [*str(error).strip().splitlines(), ""]
        self.tell(
            "failed",
            f"Host {self.index} has failed in {subject}: "
            f"{type(error).__name__}: {first}",
        )

    def leave_together(self) -> None:
        """Waits until all are at their end: some may still predict.

        The end of host 0 would be that of all. If another one fails, or is
        gone, the thread that watches ends this process.
        """
        self.tell("done", "")
        while len(self._read("done")) < self.count:
            time.sleep(_BEAT_SECS / 10)

    def part(self) -> None:
        """Waits until all have heard of a failure, and said so in their logs.

        With host 0 goes what others have not read yet, and JAX ends them.
        """
        until = time.monotonic() + _PARTING_SECS
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self.tell("left", "")
            while self._read("failed") and time.monotonic() < until:
                if len(self._read("left")) == self.count:
                    return
                time.sleep(_BEAT_SECS / 10)

    def _read(self, folder: str) -> list[tuple[int, str]]:
        entries = self._client.key_value_dir_get(f"kte/{folder}")
        return [(int(key.rsplit("/", 1)[1]), value) for key, value in entries]

    def _look(self) -> str | None:
        """Why this process has to end, if it has to."""
        try:
            self._beats += 1
            self.tell("alive", json.dumps([self._beats, self.runs]))
            alive = {host: json.loads(v) for host, v in self._read("alive")}
            failures = self.failures()
        except jax.errors.JaxRuntimeError as error:
            return (
                "Host 0, through which all others talk, is gone: "
                f"{str(error).splitlines()[0]}."
            )
        now = time.monotonic()
        return failures or self._silent(alive, now) or self._stuck(alive, now)

    def _silent(self, alive: dict[int, Any], now: float) -> str | None:
        for host in range(self.count):
            news = alive.get(host)
            if host not in self._news or self._news[host][0] != news:
                self._news[host] = (news, now)
            elif now - self._news[host][1] > self.patience_secs:
                return (
                    f"Host {host} of {self.count} has not been heard of for "
                    f"{self.patience_secs:.0f} seconds: it is gone."
                )
        return None

    def _stuck(self, alive: dict[int, Any], now: float) -> str | None:
        """A host that has not given its devices what others have given theirs.

        Others wait for its devices then, and cannot be asked.
        """
        most = max(runs for _, runs in alive.values())
        for host, (_, runs) in alive.items():
            if runs == most:
                self._behind.pop(host, None)
            elif self._behind.get(host, (None, 0.0))[0] != runs:
                self._behind[host] = (runs, now)
            elif now - self._behind[host][1] > self.patience_secs:
                return (
                    f"Host {host} of {self.count} is alive, but stuck: its "
                    f"devices were given {runs} runs, and those of others "
                    f"{most}, for {self.patience_secs:.0f} seconds."
                )
        return None

    def _end(self, problem: str) -> None:
        """Ends this process, unless it does so by itself in a moment."""
        time.sleep(_GRACE_SECS)
        _logger.critical(
            "%s This one, host %d, ends, too. Start all hosts again to go on "
            "from the latest checkpoint.",
            problem,
            self.index,
        )
        self.part()
        _leave()


_watch: _Watch | None = None


def start(index: int, count: int, patience_secs: float) -> None:
    """Begins to watch, once in a process.

    Args:
        index: The number of this process.
        count: How many there are.
        patience_secs: How long another one may be silent, or behind.
    """
    global _watch
    if _watch is not None:
        _watch.patience_secs = patience_secs
        return
    _watch = _Watch(index, count, patience_secs)
    _watch.start()
    atexit.register(_at_exit)


def ran() -> None:
    """Tells that the devices have been given another run of steps."""
    if _watch is not None:
        _watch.runs += 1


def check_failures() -> None:
    """Raises an error if another host has failed.

    Raises:
        HostError: One has.
    """
    if _watch is None:
        return
    said = _watch.failures()
    if said is not None:
        raise HostError(
            f"{said} This one, host {_watch.index}, ends, too. Start all hosts "
            "again to go on from the latest checkpoint."
        )


@contextlib.contextmanager
def lost_contact() -> Iterator[None]:
    """Says in a `with` block that the coordinator is gone, if it is.

    Raises:
        HostError: The coordination service does not answer.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        raise HostError(
            "Host 0, through which all others talk, is gone. Start all hosts "
            "again to go on from the latest checkpoint."
        ) from error


def check_gone() -> None:
    """Raises an error if other hosts give no sign for some seconds.

    Raises:
        HostError: They do not.
    """
    if _watch is None:
        return
    with lost_contact():
        gone = _watch.silent_now()
    if gone:
        raise HostError(
            f"Host {', '.join(map(str, gone))} of {_watch.count} is gone, and "
            "with it some of the devices. Start all hosts again to go on from "
            "the latest checkpoint."
        )


@contextlib.contextmanager
def told_of_errors(subject: str) -> Iterator[None]:
    """Tells the other hosts of what ends the `with` block badly.

    Args:
        subject: What the block is about.
    """
    try:
        yield
    except Exception as error:
        if _watch is None:
            raise
        is_first, _watch.has_failed = not _watch.has_failed, True
        if is_first and isinstance(error, jax.errors.JaxRuntimeError):
            # Devices that wait for those of a dead host.
            check_gone()
        if is_first and not isinstance(error, HostError):
            error.add_note(f"This happened on host {_watch.index}.")
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                _watch.tell_failure(subject, error)
        raise


def _at_exit() -> None:
    """Ends soon after a failure, for which JAX would wait; or with all."""
    if _watch is None:
        return
    # What the interpreter has just printed.
    error = getattr(sys, "last_value", None)
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        if not _watch.has_failed:
            if error is None:
                _watch.leave_together()
                _watch.stop()
                return
            _watch.tell_failure("the program", error)
    _watch.part()
    _leave()


def _leave() -> None:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_EXIT_CODE)
