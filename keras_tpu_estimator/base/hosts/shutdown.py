"""The common end of all programs, which every process must observe."""

import _sitebuiltins
import atexit
import contextlib
import dataclasses
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any, NoReturn, Self

import jax

from keras_tpu_estimator.base.common.system import RETRY_CODE
from keras_tpu_estimator.base.hosts.failures import Problem, code_of, exit_code
from keras_tpu_estimator.base.hosts.store import Store

# The time in which a process may end by itself after another one has failed.
GRACE_SECS = 3.0
# The time for which a failed process waits until the others have read this.
SHUTDOWN_SECS = GRACE_SECS + 4.0
# The additional wait of process 0, until the others have exited. One that does not know
# its exit code first releases all objects.
_LEAVING_SECS = 1.0
_FINALIZING_SECS = 10.0
_LOOK_SECS = 0.1
_LOOK_MSECS = 200
_ENDED = "ended"
_LEAVING = "leaving"
_LEFT = "left"
_ALL = "all"


@dataclasses.dataclass(frozen=True)
class End:
    """The end of a program: its exit code, if known, and the problem that ended it."""

    code: int | None
    problem: Problem | None = None

    @classmethod
    def from_json(cls, code: int | None, *problem: Any) -> Self:
        """Returns the end that `to_json` has encoded."""
        return cls(code, Problem(*problem) if problem else None)

    def to_json(self) -> list[object]:
        """Returns values that JSON can represent."""
        if self.problem is None:
            return [self.code]
        return [self.code, *dataclasses.astuple(self.problem)]


class Shutdown:
    """The shutdown, in which no process exits before all have ended or know the cause.

    If one exited early, JAX would abort the others without a message.
    """

    def __init__(self, index: int, count: int, store: Store):
        self._index = index
        self._count = count
        self._store = store
        self.is_announced = False
        self._has_published = False

    def ends(self) -> dict[int, End]:
        """Returns how the programs that have ended did so, by process."""
        ends = self._store.published_by_process(_ENDED)
        return {host: End.from_json(*end) for host, end in ends.items()}

    def problem(self) -> Problem | None:
        """Returns the problem that ended another process early."""
        ends = self.ends()
        ends.pop(self._index, None)
        problems = [ends[host].problem for host in sorted(ends)]
        early_ends = [problem for problem in problems if problem is not None]
        # A problem of another process is the more likely cause.
        early_ends.sort(key=lambda problem: problem.host == self._index)
        return early_ends[0] if early_ends else None

    def leave_together(
        self, code: int | None, reported: Callable[[], Problem | None]
    ) -> Problem | None:
        """Waits until all programs have ended, or returns a problem.

        Some programs may still predict, and if process 0 exits, JAX ends all others.
        """
        self._publish(End(code))
        self._arrive(_ENDED)
        while (problem := reported()) is None:
            if self._have_all(_ENDED):
                # A problem may have been published before that.
                return reported() or self._unlike_codes()
        return problem

    def disconnect_together(self, within_secs: float) -> Problem | None:
        """Waits until all can disconnect from JAX's service, or returns a problem.

        If one of them were late, JAX would abort all.
        """
        if (problem := self.problem()) is not None:
            return problem
        until = time.monotonic() + within_secs
        self._store.publish(_LEAVING, self._index)
        self._arrive(_LEAVING)
        while not self._have_all(_LEAVING):
            if time.monotonic() > until:
                ready = self._store.published_by_process(_LEAVING)
                late = min({*range(self._count)} - ready.keys(), default=0)
                problem = Problem(
                    f"Host {late} of {self._count} has not ended within "
                    f"{within_secs:.0f} seconds after the others.",
                    late,
                    is_reachable=True,
                )
                self._publish(End(problem.code, problem))
                return problem
        return None

    def _arrive(self, where: str) -> None:
        """Counts this process, and tells the others if it is the last one."""
        if self._store.increment(f"{_ALL}/{where}/count") == self._count:
            self._store.write(f"{_ALL}/{where}/all", b"")

    def _have_all(self, where: str) -> bool:
        """Waits for a moment, and returns whether all processes have arrived."""
        return self._store.read(f"{_ALL}/{where}/all", _LOOK_MSECS) is not None

    def _unlike_codes(self) -> Problem | None:
        """Returns the problem of a program that has failed, if others have not."""
        codes = {host: end.code or 0 for host, end in self.ends().items()}
        failed = [host for host in sorted(codes) if codes[host]]
        if len(failed) in (0, self._count):
            return None
        host, code = failed[0], codes[failed[0]]
        return Problem(
            f"The program of host {host} has ended with exit code {code}.",
            host,
            code,
            is_reachable=True,
            is_end=True,
        )

    def announce_end(self, problem: Problem) -> None:
        """Publishes why this process ends, and waits until all have read it.

        When process 0 exits, its store is gone and JAX ends the others. A launcher may
        also end all processes when one has ended.
        """
        self.is_announced = True
        until = time.monotonic() + SHUTDOWN_SECS
        waited_for = {*range(self._count)}
        # A lost process reads nothing.
        if not problem.is_reachable and problem.host is not None:
            waited_for.discard(problem.host)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            if not self._has_published:
                self._publish(End(problem.code, problem))
            self._store.publish(_LEFT, self._index)
            while not waited_for <= self._store.published_by_process(_LEFT).keys():
                if time.monotonic() > until:
                    return
                time.sleep(_LOOK_SECS)
            if self._index == 0:
                time.sleep(self._leaving_secs(problem))

    def _leaving_secs(self, problem: Problem) -> float:
        """Returns the additional wait of process 0."""
        if not problem.is_end or problem.host is None:
            return _LEAVING_SECS
        ended = self.ends().get(problem.host)
        is_exiting = ended is not None and ended.code is None
        return _FINALIZING_SECS if is_exiting else _LEAVING_SECS

    def _publish(self, end: End) -> None:
        self._has_published = True
        self._store.publish(_ENDED, self._index, end.to_json())


class ProgramEnd:
    """A record of the uncaught error or exit code of the program.

    Python tells functions of `atexit` neither of them, so this observes what sets them:
    `sys.excepthook`, and calls of `sys.exit`, `exit` and `quit`. From Python 3.12 on,
    it also observes every `SystemExit` that leaves the script.

    Attributes:
        error: The uncaught error that ends the program, or `None`.
        code: The exit code of the last exit, or `None`. The program may have caught it.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.code: int | None = None
        self._undo = contextlib.ExitStack()

    def note(self) -> None:
        """Starts to record."""
        excepthook, leave = sys.excepthook, sys.exit
        call = _sitebuiltins.Quitter.__call__

        def uncaught(
            kind: type[BaseException],
            error: BaseException,
            traceback: TracebackType | None,
        ) -> None:
            # At a prompt, and with `python -i`, the program continues.
            if not (hasattr(sys, "ps1") or sys.flags.inspect):
                self.error = error
            excepthook(kind, error, traceback)

        def exit_with(status: Any = None, /) -> NoReturn:
            self._note_code(SystemExit(status))
            leave(status)

        def quit_with(quitter: Any, code: Any = None) -> NoReturn:
            self._note_code(SystemExit(code))
            call(quitter, code)

        self._replace(sys, "excepthook", uncaught)
        self._replace(sys, "exit", exit_with)
        self._replace(_sitebuiltins.Quitter, "__call__", quit_with)
        self._observe_script()

    def forget(self) -> None:
        """Restores the earlier functions, unless others replaced ours."""
        self._undo.close()

    def _replace(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        earlier = getattr(owner, name)

        def restore() -> None:
            if getattr(owner, name) is replacement:
                setattr(owner, name, earlier)

        setattr(owner, name, replacement)
        self._undo.callback(restore)

    def _observe_script(self) -> None:
        """Records the `SystemExit` that leaves the outermost code."""
        if sys.version_info < (3, 12):
            return
        monitoring = sys.monitoring
        # The others are for debuggers, coverage and profilers.
        free = [tool for tool in (3, 4) if monitoring.get_tool(tool) is None]
        frame = sys._current_frames().get(threading.main_thread().ident)
        if not free or frame is None:
            return
        while frame.f_back is not None:
            frame = frame.f_back
        script, (tool, *_) = frame.f_code, free

        def unwound(code: CodeType, offset: int, error: BaseException) -> None:
            if code is script and isinstance(error, SystemExit):
                self._note_code(error)

        unwind = monitoring.events.PY_UNWIND
        monitoring.use_tool_id(tool, "keras_tpu_estimator")
        self._undo.callback(monitoring.free_tool_id, tool)
        monitoring.register_callback(tool, unwind, unwound)
        self._undo.callback(monitoring.register_callback, tool, unwind, None)
        monitoring.set_events(tool, unwind)
        self._undo.callback(monitoring.set_events, tool, 0)

    def _note_code(self, error: SystemExit) -> None:
        # In another thread it ends only that.
        if threading.current_thread() is threading.main_thread():
            self.code = exit_code(error)


def exit_now(code: int) -> NoReturn:
    """Ends this process with an exit code, without further functions of `atexit`."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@functools.cache
def observe_program() -> None:
    """Makes the exit code of a single process tell its launcher whether to restart."""
    program_end = ProgramEnd()
    program_end.note()
    process = os.getpid()

    def leave() -> None:
        error = program_end.error
        is_here = os.getpid() == process
        if is_here and error is not None and code_of(error) == RETRY_CODE:
            exit_now(RETRY_CODE)

    atexit.register(leave)
