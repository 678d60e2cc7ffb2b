"""This process among others, from joining them to leaving them.

One object has the connection to the others, the conversations that are held
over it, the watch over them, and the failures of all. There is one in a process
that has joined others, and none in what such a process forks or starts.
"""

import atexit
import collections
import contextlib
import contextvars
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax

from keras_tpu_estimator.ground.hosts import jax_internals
from keras_tpu_estimator.ground.hosts import parting
from keras_tpu_estimator.ground.hosts.cluster import Cluster
from keras_tpu_estimator.ground.hosts.errors import HostError
from keras_tpu_estimator.ground.hosts.failures import Failure
from keras_tpu_estimator.ground.hosts.failures import Failures
from keras_tpu_estimator.ground.hosts.problem import Problem
from keras_tpu_estimator.ground.hosts.program_end import ProgramEnd
from keras_tpu_estimator.ground.hosts.store import Store
from keras_tpu_estimator.ground.hosts.watch import Watch

_logger = logging.getLogger("keras_tpu_estimator")

_AGAIN = "Start all hosts again to go on from the latest checkpoint."
_LOST = f"Host 0, through which all others talk, is gone. {_AGAIN}"


class Membership:
    """What this process has with the others that it has joined.

    Args:
        client: That of JAX's coordination service.

    Attributes:
        index: The number of this process.
        store: What they tell each other.
        watch: That over the others.
        acts_alone: Whether this process does something without them.
    """

    def __init__(self, cluster: Cluster, client: Any):
        self.cluster = cluster
        self.index = cluster.process_id
        self.count = cluster.num_processes
        self.store = Store(client)
        place = (self.index, self.count, self.store)
        self.failures = Failures(*place)
        self.watch = Watch(*place, self._told, self._end)
        self.acts_alone: contextvars.ContextVar[bool] = contextvars.ContextVar(
            "acts_alone", default=False
        )
        self._parting = parting.Parting(*place)
        self._program_end = ProgramEnd()
        self._process = os.getpid()
        # How often conversations about each subject were begun.
        self._begun: collections.Counter[str] = collections.Counter()
        # The last that was a reason to end.
        self._problem: Problem | None = None

    @property
    def is_apart(self) -> bool:
        """Whether this is alone now: it acts so, or has been forked off."""
        return self.acts_alone.get() or os.getpid() != self._process

    def begin(self) -> None:
        """Begins to watch over the others, and for the end of the program."""
        self._program_end.note()
        self.watch.start()
        atexit.register(self._at_exit)

    def leave(self) -> None:
        """Ends what `begin` has begun."""
        atexit.unregister(self._at_exit)
        self._program_end.forget()
        self.watch.stop()

    @contextlib.contextmanager
    def acting_alone(self) -> Iterator[None]:
        """Has this process be alone in a `with` block, on this thread."""
        token = self.acts_alone.set(True)
        try:
            yield
        finally:
            self.acts_alone.reset(token)

    def number_of(self, subject: str) -> int:
        """The number of a conversation that begins now, equal on all hosts."""
        # What the chief does alone begins none that others know of.
        if not self.acts_alone.get():
            self._begun[subject] += 1
        return self._begun[subject]

    def check(self) -> None:
        """Raises an error if another host has failed.

        Raises:
            HostError: One has.
        """
        problem = self._told()
        if problem is not None:
            raise self.error(problem)

    def check_gone(self) -> None:
        """Raises an error if other hosts give no sign for some seconds.

        Raises:
            HostError: They do not.
        """
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

    def ended(self) -> dict[int, parting.End]:
        """Returns the ends of the hosts whose programs have ended."""
        return self._parting.ends()

    def raise_ended(self, host: int, end: parting.End, subject: str) -> None:
        """Raises the error for a process that has ended before an agreement.

        Args:
            subject: What the agreement was about.

        Raises:
            HostError: Always.
        """
        code = f", with exit code {end.code}" if end.code else ""
        raise self.error(
            Problem(
                f"Host {host} did not answer about {subject}, because its "
                f"program has ended{code}. Every host must make the same "
                "calls.",
                host,
                end.code or 1,
                hears=True,
                is_end=True,
            )
        )

    def error(self, problem: Problem) -> HostError:
        """The error that ends this process because of a problem."""
        self._problem = problem
        return HostError(
            f"{problem.text} This one, host {self.index}, ends, too. {_AGAIN}"
        )

    @contextlib.contextmanager
    def lost_contact(self) -> Iterator[None]:
        """Says in a `with` block that the coordinator is gone, if it is.

        Raises:
            HostError: The coordination service does not answer.
        """
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            raise HostError(_LOST) from error

    @contextlib.contextmanager
    def reported_errors(self, call: str, subject: str) -> Iterator[None]:
        """Reports an error that leaves the `with` block to the other hosts.

        Args:
            call: The call around the block, by the same name on all hosts.
        """
        try:
            yield
        except BaseException as error:
            self._report(call, subject, error)
            raise

    def _report(self, call: str, subject: str, error: BaseException) -> None:
        note = f"This happened on host {self.index}."
        is_told = note in getattr(error, "__notes__", ())
        if is_told or isinstance(error, HostError):
            return
        if isinstance(error, jax.errors.JaxRuntimeError):
            # Devices that wait for those of a dead host.
            self.check_gone()
        error.add_note(note)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self.failures.tell(call, Failure.of(self.index, subject, error))

    def _has_left(self) -> bool:
        """Whether the program itself has left the cluster."""
        return jax_internals.coordination_client() is not self.store.client

    def _told(self) -> Problem | None:
        """Why this process has to end, by what others have told."""
        failures = self.failures.of_others()
        if not failures:
            return self._parting.problem()
        text = " ".join(each.text for each in failures)
        first = failures[0]
        return Problem(text, first.host, first.code or 1, hears=True)

    def _end(self, problem: Problem) -> None:
        """Ends this process, unless it does so by itself in a moment.

        Or unless a call fails here in that moment, as it has for others.
        """
        if self.watch.is_over_within(parting.GRACE_SECS) or self._has_left():
            return
        told: Problem | None = problem
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            told = self._told()
        if told is None and problem.hears:
            return
        if told is not None and self._parting.has_begun:
            # The main thread is about to end.
            return
        _logger.critical(
            "%s This one, host %d, ends, too. %s",
            problem.text,
            self.index,
            _AGAIN,
        )
        self._parting.part(problem)
        _exit(problem.code)

    def _at_exit(self) -> None:
        """Comes to the end with all others, or ends soon after a failure."""
        if os.getpid() != self._process:
            # Forked off, and none of the hosts.
            return
        try:
            problem = None if self._has_left() else self._at_end()
        except jax.errors.JaxRuntimeError:
            problem = Problem(_LOST, host=0)
        # Whoever started this sees others end, and would hurry it.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if problem is None:
            self.watch.stop()
            # At once, as all are here: one that comes later, for what else
            # there is to do at its end, would be missed, and end the others.
            jax.distributed.shutdown()
            return
        self._parting.part(problem)
        if problem.host != self.index:
            _exit(self._program_end.code or problem.code)
        if not problem.is_end:
            _exit(problem.code)
        if self._program_end.code is not None:
            _exit(self._program_end.code)
        # Its exit code is not known yet, and JAX is not to change it.
        self.watch.stop()
        jax_internals.forget_cluster()

    def _at_end(self) -> Problem | None:
        """What is the matter at the end of the program, if anything is."""
        error = self._program_end.error
        if error is None:
            return self._leave_together()
        if isinstance(error, HostError):
            return self._problem or Problem(str(error), host=None)
        failure = Failure.of(self.index, "the program", error)
        return Problem(failure.text, self.index, failure.code, hears=True)

    def _leave_together(self) -> Problem | None:
        """Waits for the ends of all; what keeps them from it, if anything."""
        code = self._program_end.code
        problem = self._parting.leave_together(code, self._told)
        if problem is not None:
            return problem
        # Caught here, it has ended the others.
        failure = self.failures.of_this_host_alone()
        if failure is None:
            return None
        return Problem(failure.text, self.index, failure.code or 1, hears=True)


def _exit(code: int) -> None:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
