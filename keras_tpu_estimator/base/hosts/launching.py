"""The command that starts a script in several processes, as one cluster.

    python -m keras_tpu_estimator launch --processes 4 --cores 2 script.py ...

The environment of each process has the variables that
`keras_tpu_estimator.initialize` reads. Each line of output begins with the
number of its process. When a process fails, the command names it, ends the
others, and returns its exit code.
"""

import argparse
import array
import collections
import contextlib
import io
import os
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import BinaryIO, NamedTuple, TextIO

from keras_tpu_estimator.base.common.machine import check_is_posix
from keras_tpu_estimator.base.hosts import parent_process
from keras_tpu_estimator.base.hosts.detection import (
    ADDRESS_VARIABLE,
    COUNT_VARIABLE,
    ID_VARIABLE,
)

_HOST = "127.0.0.1"
_CORES_FLAG = "--xla_force_host_platform_device_count"
# Names, because Windows imports this module and lacks the last one.
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
# The time in which processes may end by themselves after a failure.
_MOMENT_SECS = 2.0
_CHUNK_BYTES = 2**16


def main(name: str, arguments: Sequence[str]) -> int:
    """Runs the command, and returns 0 or the exit code of the first failed process.

    The code is 128 + signal for a process that a signal ended.
    """
    for stream in (sys.stdout, sys.stderr):
        # The terminal may not support all characters of the output.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    options = _parser(name).parse_args(arguments)
    check_is_posix(
        f"The command `{name}`",
        "Start the script once, which uses all devices of this machine, or "
        "run the command in WSL.",
    )
    command = [sys.executable, *(["-m"] if options.module else [])]
    command += [options.script, *options.arguments]
    address = f"{_HOST}:{_free_port()}"
    environments = [
        _environment(os.environ, address, options.processes, number)
        | _simulated(os.environ, options.cores)
        for number in range(options.processes)
    ]
    return _Processes(command, environments, options.grace).run()


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m keras_tpu_estimator {name}",
        description="Starts a script in several processes of this machine, "
        "which keras_tpu_estimator.initialize() joins into one cluster.",
    )
    parser.add_argument(
        "--processes",
        type=_positive,
        required=True,
        help="number of processes",
    )
    parser.add_argument(
        "--cores",
        type=_positive,
        help="number of CPU devices to simulate in each process; by default "
        "each has the devices that JAX finds, and at most one GPU",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="seconds between SIGTERM and SIGKILL for the other processes "
        "after one has failed (default: %(default)s)",
    )
    parser.add_argument(
        "-m",
        dest="module",
        action="store_true",
        help="the script is the name of a module, as in python -m",
    )
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _positive(text: str) -> int:
    if not re.fullmatch("0*[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(
            f"must be a positive integer. Received: {text!r}"
        )
    return int(text)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _environment(
    inherited: Mapping[str, str], address: str, count: int, number: int
) -> dict[str, str]:
    """Returns the environment of one process."""
    return {
        # Lines appear as soon as they are written.
        "PYTHONUNBUFFERED": "1",
        # Each process uses one GPU, if there are any.
        "JAX_LOCAL_DEVICE_IDS": str(number),
        # Each process has its own place in the cluster.
        **{k: v for k, v in inherited.items() if k != parent_process.VARIABLE},
        # Only processes of this machine reach the coordinator.
        "JAX_COORDINATOR_BIND_ADDRESS": address,
        ADDRESS_VARIABLE: address,
        COUNT_VARIABLE: str(count),
        ID_VARIABLE: str(number),
    }


def _simulated(inherited: Mapping[str, str], cores: int | None) -> dict[str, str]:
    """Returns the variables that simulate devices."""
    if cores is None:
        return {}
    further_flags = [
        flag
        for flag in inherited.get("XLA_FLAGS", "").split()
        if not flag.startswith(_CORES_FLAG)
    ]
    flags = " ".join([*further_flags, f"{_CORES_FLAG}={cores}"])
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


class _Action(NamedTuple):
    """An action at a time, unless all processes have ended before."""

    at: float
    run: Callable[[], None]


class _Processes:
    """Processes that end together when one of them fails."""

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        grace_secs: float,
    ) -> None:
        self._command = command
        self._environments = environments
        self._grace_secs = grace_secs
        self._all: list[subprocess.Popen[bytes]] = []
        self._ended: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._is_writing = threading.Lock()
        self._received: list[int] = []

    def run(self) -> int:
        """Starts the processes, waits for them, and returns an exit code."""
        with self._forwarding_signals():
            for number, environment in enumerate(self._environments):
                self._start(number, environment)
            code = self._wait()
        if code:
            # Their child processes, such as readers of data, may remain.
            self._kill()
        return code

    def _wait(self) -> int:
        """Waits for all; after a failure, ends the others in time."""
        failed = 0
        # The actions after a failure, by time.
        actions: collections.deque[_Action] = collections.deque()
        for _ in self._all:
            number, code = self._next_end(actions)
            if code:
                self._report_end(number, code)
            if code and not failed:
                failed = code
                now = time.monotonic()
                actions.append(_Action(now + _MOMENT_SECS, self._end_others))
                actions.append(
                    _Action(now + _MOMENT_SECS + self._grace_secs, self._kill)
                )
        return failed

    def _next_end(self, actions: "collections.deque[_Action]") -> tuple[int, int]:
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
        if not self._received:
            self._signal(signal.SIGTERM)

    def _start(self, number: int, environment: Mapping[str, str]) -> None:
        ended, at_end = os.pipe()
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
        for received in self._received:
            process.send_signal(received)
        prefix = f"[{number}] "
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
        with self._is_writing, contextlib.suppress(OSError):
            sys.stderr.write(
                f"Process {number} of {len(self._all)} has ended with exit "
                f"code {code}{name}.\n"
            )
            sys.stderr.flush()

    def _copy(self, source: BinaryIO, ended: int, sink: TextIO, prefix: str) -> None:
        """Copies complete lines until the process has ended."""
        with source:
            for line in _lines(source.fileno(), ended):
                text = line.decode(errors="backslashreplace")
                # The process continues if the reader of the output is gone.
                with self._is_writing, contextlib.suppress(OSError):
                    sink.write(f"{prefix}{text}\n")
                    sink.flush()

    @contextlib.contextmanager
    def _forwarding_signals(self) -> Iterator[None]:
        def forward(number: int, frame: FrameType | None) -> None:
            del frame
            self._received.append(number)
            self._signal(number)

        forwarded = [
            number
            for number in (signal.Signals[name] for name in _SIGNALS)
            # `nohup` ignores this signal, and the processes inherit that.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        ]
        before = {number: signal.signal(number, forward) for number in forwarded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signal(self, number: int) -> None:
        for process in self._all:
            process.send_signal(number)

    def _kill(self) -> None:
        """Kills the processes and their children."""
        for process in self._all:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _lines(source: int, ended: int) -> Iterator[bytes]:
    """Yields the lines that a process writes until it ends.

    A child that outlives it may keep the same output open, so the end of the process
    ends its output. Both arguments are file descriptors; `ended` is readable when the
    process has ended.
    """
    incomplete, is_last = b"", False
    while not is_last:
        ready, _, _ = select.select([source, ended], [], [])
        is_last = ended in ready
        data = os.read(source, _available_bytes(source) if is_last else _CHUNK_BYTES)
        is_last |= not data
        *lines, incomplete = (incomplete + data).split(b"\n")
        yield from lines
    if incomplete:
        yield incomplete


def _available_bytes(source: int) -> int:
    """Returns the number of bytes that can be read without waiting."""
    # Windows has neither, and imports this module for its error message.
    import fcntl
    import termios

    number = array.array("i", [0])
    fcntl.ioctl(source, termios.FIONREAD, number)
    return number[0]
