"""The connection of this process to the others, from joining to leaving them.

One object holds the key-value store, the watch over the other processes, and
the failures of all. It exists in processes that have joined a cluster, but not
in the processes that these fork or start.
"""

import atexit
import collections
import contextlib
import contextvars
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import jax

from keras_tpu_estimator.base.hosts import shutdown
from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.failures import (
    Failure,
    Failures,
    HostError,
    Problem,
)
from keras_tpu_estimator.base.hosts.shutdown import ProgramEnd
from keras_tpu_estimator.base.hosts.store import Store
from keras_tpu_estimator.base.hosts.watch import Watch
from keras_tpu_estimator.base.upstream import jax_clusters

_logger = logging.getLogger("keras_tpu_estimator")

_AGAIN = "Restart all hosts to continue from the latest checkpoint."
# The same default as in `initialize`.
_SHUTDOWN_SECS = 60
_LOST = f"Host 0, which coordinates the others, is gone. {_AGAIN}"


class Membership:
    """The connection of this process to the others of its cluster.

    Attributes:
        acts_alone: Whether this process currently acts without the others.
        shutdown_secs: How long this process waits at the end for others whose programs
            have ended.
    """

    def __init__(self, cluster: Cluster, client: Any):
        self.cluster = cluster
        self.index = cluster.process_id
        self.count = cluster.num_processes
        self.store = Store(client)
        common = (self.index, self.count, self.store)
        self.failures = Failures(*common)
        self.watch = Watch(*common, self._reported, self._end)
        self.acts_alone: contextvars.ContextVar[bool] = contextvars.ContextVar(
            "acts_alone", default=False
        )
        self.shutdown_secs: float = _SHUTDOWN_SECS
        self._shutdown = shutdown.Shutdown(*common)
        self._program_end = ProgramEnd()
        self._process = os.getpid()
        # The number of exchanges that were begun, by subject.
        self._begun: collections.Counter[str] = collections.Counter()
        # The last reason to end.
        self._problem: Problem | None = None

    @property
    def is_apart(self) -> bool:
        """Whether this process acts without the others, or was forked."""
        return self.acts_alone.get() or os.getpid() != self._process

    def begin(self) -> None:
        """Starts the watch over the others, and notes how the program ends."""
        self._program_end.note()
        self.watch.start()
        atexit.register(self._at_exit)

    def leave(self) -> None:
        """Undoes `begin`."""
        atexit.unregister(self._at_exit)
        self._program_end.forget()
        self.watch.stop()

    @contextlib.contextmanager
    def acting_alone(self) -> Iterator[None]:
        """Makes this thread act without the others in a `with` block."""
        token = self.acts_alone.set(True)
        try:
            yield
        finally:
            self.acts_alone.reset(token)

    def number_of(self, subject: str) -> int:
        """Returns the number of the next exchange, equal in all processes."""
        # A program that continues has caught its last exit.
        self._program_end.code = None
        # The others do not take part in exchanges of a process acting alone.
        if not self.acts_alone.get():
            self._begun[subject] += 1
        return self._begun[subject]

    def check(self) -> None:
        """Raises a `HostError` if another process has failed."""
        problem = self._reported()
        if problem is not None:
            raise self.error(problem)

    def check_gone(self) -> None:
        """Raises a `HostError` if another process is silent for some seconds."""
        with self.lost_contact():
            gone = self.watch.silent_now()
        if gone:
            names = ", ".join(map(str, gone))
            raise self.error(
                Problem(
                    f"Host {names} of {self.count} is gone, and with it some "
                    "of the devices.",
                    gone[0],
                )
            )

    def ended(self) -> dict[int, shutdown.End]:
        """Returns how the programs that have ended did so, by process."""
        return self._shutdown.ends()

    def raise_ended(self, host: int, end: shutdown.End, subject: str) -> None:
        """Raises the `HostError` for a process that has ended before an agreement."""
        code = f", with exit code {end.code}" if end.code else ""
        raise self.error(
            Problem(
                f"Host {host} did not answer about {subject}, because its "
                f"program has ended{code}. Every host must make the same "
                "calls.",
                host,
                end.code or 1,
                is_reachable=True,
                is_end=True,
            )
        )

    def error(self, problem: Problem) -> HostError:
        """Returns the error that ends this process because of a problem."""
        self._problem = problem
        return HostError(f"{problem.text} Host {self.index} also ends. {_AGAIN}")

    @contextlib.contextmanager
    def lost_contact(self) -> Iterator[None]:
        """Raises a `HostError` if a `with` block loses the coordination service."""
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            raise HostError(_LOST) from error

    @contextlib.contextmanager
    def reported_errors(self, call: str, subject: str) -> Iterator[None]:
        """Reports an error of a block to the others; its call has one name in all."""
        try:
            yield
        except BaseException as error:
            self._report(call, subject, error)
            raise

    def _report(self, call: str, subject: str, error: BaseException) -> None:
        note = f"This happened on host {self.index}."
        is_reported = note in getattr(error, "__notes__", ())
        if is_reported or isinstance(error, HostError):
            return
        if isinstance(error, jax.errors.JaxRuntimeError):
            # Devices fail if they wait for those of a dead process.
            self.check_gone()
        error.add_note(note)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self.failures.publish(call, Failure.from_error(self.index, subject, error))

    def _has_left(self) -> bool:
        """Returns whether the program itself has left the cluster."""
        return jax_clusters.coordination_client() is not self.store.client

    def _reported(self) -> Problem | None:
        """Returns why this process must end, by what others published."""
        failures = self.failures.of_others()
        if not failures:
            return self._shutdown.problem()
        text = " ".join(failure.text for failure in failures)
        first = failures[0]
        return Problem(text, first.host, first.code or 1, is_reachable=True)

    def _end(self, problem: Problem) -> None:
        """Ends this process, unless it or the problem ends within a grace period."""
        # If the others name this process, it is stuck or late, and they wait for its
        # end. A program that has ended ends with its own exit code.
        is_late = problem.host == self.index and not problem.is_end
        grace_secs = 0.0 if is_late else shutdown.GRACE_SECS
        if self.watch.is_over_within(grace_secs) or self._has_left():
            return
        # A process that seemed stuck may be gone.
        latest = self.watch.look()
        if latest is None or self._shutdown.is_announced:
            # If it is announced, the main thread is about to end.
            return
        self._log(latest)
        self._shutdown.announce_end(latest)
        shutdown.exit_now(latest.code)

    def _log(self, problem: Problem) -> None:
        """Logs why this process ends because of another one."""
        text = problem.text.removesuffix(f" {_AGAIN}")
        _logger.critical("%s Host %d also ends. %s", text, self.index, _AGAIN)

    def _at_exit(self) -> None:
        """Waits for the ends of all processes, or ends after a failure."""
        if os.getpid() != self._process:
            # A forked child is not part of the cluster.
            return
        try:
            problem = None if self._has_left() else self._at_end()
        except jax.errors.JaxRuntimeError:
            problem = Problem(_LOST, host=0)
        # The launcher sees other processes end, and may terminate this one.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if problem is None:
            self.watch.stop()
            jax.distributed.shutdown()
            return
        if self._program_end.error is None and problem.host != self.index:
            self._log(problem)
        self._shutdown.announce_end(problem)
        if problem.host != self.index:
            shutdown.exit_now(self._program_end.code or problem.code)
        if not problem.is_end:
            shutdown.exit_now(problem.code)
        if self._program_end.code is not None:
            shutdown.exit_now(self._program_end.code)
        # Python has yet to set the exit code, and JAX must not change it.
        self.watch.stop()
        jax_clusters.forget_cluster()

    def _at_end(self) -> Problem | None:
        """Returns the problem at the end of the program, if there is one."""
        error = self._program_end.error
        if error is None:
            return self._leave_together()
        if isinstance(error, HostError):
            return self._problem or Problem(str(error), host=None)
        failure = Failure.from_error(self.index, "the program", error)
        return Problem(failure.text, self.index, failure.code, is_reachable=True)

    def _leave_together(self) -> Problem | None:
        """Waits for all programs to end; returns what prevents this."""
        code = self._program_end.code
        problem = self._shutdown.leave_together(code, self._reported)
        if problem is not None:
            return problem
        # The program caught an error that has ended the others.
        failure = self.failures.only_here()
        if failure is None:
            return self._shutdown.disconnect_together(self.shutdown_secs)
        return Problem(failure.text, self.index, failure.code or 1, is_reachable=True)
