"""Processes of this machine that end together when one of them fails."""

import collections
import contextlib
import dataclasses
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, NamedTuple, TextIO

from keras_tpu_estimator.base.common.system import RETRY_CODE
from keras_tpu_estimator.base.hosts.detection import COUNT_VARIABLE, ID_VARIABLE
from keras_tpu_estimator.base.hosts.forwarding import ForwardedSignals
from keras_tpu_estimator.base.hosts.output_lines import lines_of

# The time in which processes may end by themselves after a failure.
MOMENT_SECS = 2.0
# Executes a command in a process that Linux kills when its parent ends, even if the
# parent is killed. Code after a fork must not do this, because the parent has threads.
_ENDS_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
parent, *command = sys.argv[1:]
if os.getppid() != int(parent):
    sys.exit("The process that starts this one has ended.")
os.execvp(command[0], command)
"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of processes.

    Attributes:
        code: The shell exit code of the first one that failed, or 0.
        number: Its number, or that of its slot; `None` if unknown.
        signals: The signals that this process has received.
    """

    code: int = 0
    number: int | None = None
    signals: tuple[int, ...] = ()

    @property
    def is_worth_restart(self) -> bool:
        """Whether the failure may not happen again: a signal, or a lost resource.

        A program that has received the signal of a user must not continue.
        """
        return not self.signals and (self.code == RETRY_CODE or self.code > 128)

    def in_slots(self, slots: Sequence[int]) -> "Outcome":
        """Returns this with the number of a slot, if processes had these slots."""
        if self.number is None:
            return self
        return dataclasses.replace(self, number=slots[self.number])


class Action(NamedTuple):
    """An action at a time, unless all processes have ended before."""

    at: float
    run: Callable[[], None]


class StartedProcesses:
    """Processes that end together when one of them fails."""

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        grace_secs: float,
        signals: ForwardedSignals,
    ) -> None:
        self._command = [*_prefix(), *command]
        self._environments = environments
        self._grace_secs = grace_secs
        self._signals = signals
        self._all: list[subprocess.Popen[bytes]] = []
        self._ended: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._is_writing = threading.Lock()
        # A stop may come from another thread before a process has started.
        self._is_starting = threading.Lock()
        self._is_stopped = False
        self._later_kill = threading.Timer(grace_secs, self._kill)
        self._later_kill.daemon = True

    def run(self) -> Outcome:
        """Starts the processes, and waits for them."""
        self._signals.send = self._send
        try:
            for number, environment in enumerate(self._environments):
                self._start(number, environment)
            outcome = self._wait()
        finally:
            self._signals.send = lambda _: None
            # Other processes may receive the numbers of those that have ended.
            self._later_kill.cancel()
        if outcome.code:
            # Their child processes, such as readers of data, may remain.
            self._kill()
        return outcome

    def stop(self) -> None:
        """Ends the processes, and kills those that continue. Any thread may call it."""
        with self._is_starting:
            if self._is_stopped:
                return
            self._is_stopped = True
            self._end_others()
        self._later_kill.start()

    def _wait(self) -> Outcome:
        """Waits for all; after a failure, ends the others in time."""
        failed = Outcome()
        # The actions after a failure, by time.
        actions: collections.deque[Action] = collections.deque()
        for _ in self._all:
            number, code = self._next_end(actions)
            if code:
                self._report_end(number, code)
            if code and not failed.code:
                failed = Outcome(code, number)
                now = time.monotonic()
                actions.append(Action(now + MOMENT_SECS, self._end_others))
                actions.append(Action(now + MOMENT_SECS + self._grace_secs, self._kill))
        return dataclasses.replace(failed, signals=(*self._signals.received,))

    def _next_end(self, actions: "collections.deque[Action]") -> tuple[int, int]:
        """Returns the next process that ends, and its shell exit code."""
        while actions:
            try:
                secs = max(actions[0].at - time.monotonic(), 0)
                return self._ended.get(timeout=secs)
            except queue.Empty:
                actions.popleft().run()
        return self._ended.get()

    def _end_others(self) -> None:
        # After a second signal, a process would not write its checkpoint.
        if not self._signals.received:
            self._send(signal.SIGTERM)

    def _start(self, number: int, environment: Mapping[str, str]) -> None:
        ended, at_end = os.pipe()
        with self._is_starting:
            process = subprocess.Popen(
                self._command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # A terminal signals its process group, so forwarding would repeat it.
                process_group=0,
            )
            self._all.append(process)
            if self._is_stopped:
                self._end_others()
        for received in self._signals.received:
            process.send_signal(received)
        prefix = f"[{environment[ID_VARIABLE]}] "
        readers = [
            threading.Thread(
                target=self._copy,
                args=(source, ended, sink, prefix),
                daemon=True,
            )
            for source, sink in (
                (process.stdout, sys.stdout),
                (process.stderr, sys.stderr),
            )
        ]
        for reader in readers:
            reader.start()

        def report_end() -> None:
            code = process.wait()
            os.close(at_end)
            for reader in readers:
                reader.join()
            os.close(ended)
            self._ended.put((number, code if code >= 0 else 128 - code))

        threading.Thread(target=report_end, daemon=True).start()

    def _report_end(self, number: int, code: int) -> None:
        """Names a failed process, which may have reported nothing itself."""
        name = ""
        with contextlib.suppress(ValueError):
            name = f", {signal.Signals(code - 128).name}"
        environment = self._environments[number]
        with self._is_writing, contextlib.suppress(OSError):
            sys.stderr.write(
                f"Process {environment[ID_VARIABLE]} of {environment[COUNT_VARIABLE]} "
                f"has ended with exit code {code}{name}.\n"
            )
            sys.stderr.flush()

    def _copy(self, source: BinaryIO, ended: int, sink: TextIO, prefix: str) -> None:
        """Copies complete lines until the process has ended."""
        with source:
            for line in lines_of(source.fileno(), ended):
                text = line.decode(errors="backslashreplace")
                # The process continues if the reader of the output is gone.
                with self._is_writing, contextlib.suppress(OSError):
                    sink.write(f"{prefix}{text}\n")
                    sink.flush()

    def _send(self, number: int) -> None:
        for process in self._all:
            process.send_signal(number)

    def _kill(self) -> None:
        """Kills the processes and their children."""
        for process in self._all:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _prefix() -> list[str]:
    """Returns the command that executes another one, which ends with this process."""
    if sys.platform != "linux":
        return []
    # Isolated, so that the environment of the script does not apply to it.
    return [sys.executable, "-I", "-S", "-c", _ENDS_WITH_PARENT, str(os.getpid())]
