"""Starts a script in several processes of this machine, as one cluster.

    python -m keras_tpu_estimator launch --processes 4 --cores 2 script.py ...

Each process finds in its environment what `keras_tpu_estimator.initialize`
reads. Lines of output begin with the number of the process that wrote them.
The first that fails ends all, and its exit code is that of this command; each
that fails is named.
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
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from types import FrameType
from typing import BinaryIO
from typing import NamedTuple
from typing import TextIO

from keras_tpu_estimator.ground.base.operating_system import check_is_posix
from keras_tpu_estimator.ground.hosts import lineage
from keras_tpu_estimator.ground.hosts.detection import ADDRESS_VARIABLE
from keras_tpu_estimator.ground.hosts.detection import COUNT_VARIABLE
from keras_tpu_estimator.ground.hosts.detection import ID_VARIABLE

_HOST = "127.0.0.1"
_CORES_FLAG = "--xla_force_host_platform_device_count"
# By name, because Windows imports this module and lacks the last one.
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
# How long processes that hear of a failure themselves are let alone.
_MOMENT_SECS = 2.0
_PIECE_BYTES = 2**16


def main(name: str, arguments: Sequence[str]) -> int:
    """Runs the command, until all processes have ended.

    Args:
        arguments: What follows it on the command line.

    Returns:
        The exit code of the first process that failed, which is 128 + signal
        for one that a signal ended; or 0.

    Raises:
        NotImplementedError: This is Windows.

    Example:

    >>> from keras_tpu_estimator.ground.hosts import launching
    >>> launching.main("launch", ["--processes", "2", "-m", "keyword"])
    0
    """
    for stream in (sys.stdout, sys.stderr):
        # Whatever a process writes can be shown.
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
        "which keras_tpu_estimator.initialize() makes one cluster.",
    )
    parser.add_argument(
        "--processes", type=_positive, required=True, help="how many"
    )
    parser.add_argument(
        "--cores",
        type=_positive,
        help="simulate so many cores in each process, on the CPU; by default "
        "each has the devices that JAX finds, and one GPU, if there are any",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long the others have to end after SIGTERM, when one has "
        "failed, before SIGKILL (default: %(default)s)",
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
            f"should be a whole number, 1 or more. Received: {text!r}"
        )
    return int(text)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _environment(
    inherited: Mapping[str, str], address: str, count: int, number: int
) -> dict[str, str]:
    """The variables of one process."""
    return {
        # Lines come when they are written.
        "PYTHONUNBUFFERED": "1",
        # One GPU each, where there are some.
        "JAX_LOCAL_DEVICE_IDS": str(number),
        # They have places of their own.
        **{k: v for k, v in inherited.items() if k != lineage.VARIABLE},
        # Nobody else needs to reach the coordinator.
        "JAX_COORDINATOR_BIND_ADDRESS": address,
        ADDRESS_VARIABLE: address,
        COUNT_VARIABLE: str(count),
        ID_VARIABLE: str(number),
    }


def _simulated(
    inherited: Mapping[str, str], cores: int | None
) -> dict[str, str]:
    """The variables of a process with simulated cores."""
    if cores is None:
        return {}
    others = [
        flag
        for flag in inherited.get("XLA_FLAGS", "").split()
        if not flag.startswith(_CORES_FLAG)
    ]
    flags = " ".join([*others, f"{_CORES_FLAG}={cores}"])
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


class _Measure(NamedTuple):
    """Something to do at a time, if it is still needed."""

    at: float
    take: Callable[[], None]


class _Processes:
    """Processes that end together."""

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
        """Starts them, and waits for their end.

        Returns:
            The exit code of the first that failed, or 0.
        """
        with self._passing_signals_on():
            for number, environment in enumerate(self._environments):
                self._start(number, environment)
            code = self._wait()
        if code:
            # What they started themselves, such as readers of data.
            self._kill()
        return code

    def _wait(self) -> int:
        """Waits for all; from the first that fails on, not for ever."""
        failed = 0
        # What to do then, and when.
        measures: collections.deque[_Measure] = collections.deque()
        for _ in self._all:
            number, code = self._next_end(measures)
            if code:
                self._say_end(number, code)
            if code and not failed:
                failed = code
                now = time.monotonic()
                measures.append(_Measure(now + _MOMENT_SECS, self._end_others))
                measures.append(
                    _Measure(now + _MOMENT_SECS + self._grace_secs, self._kill)
                )
        return failed

    def _next_end(
        self, measures: "collections.deque[_Measure]"
    ) -> tuple[int, int]:
        """The next that ends, and its exit code, as a shell would say it."""
        while measures:
            try:
                left = max(measures[0].at - time.monotonic(), 0)
                return self._ended.get(timeout=left)
            except queue.Empty:
                measures.popleft().take()
        return self._ended.get()

    def _end_others(self) -> None:
        # A second signal would tell a process not to write its checkpoint.
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
            # A terminal interrupts its whole group, and each would be told
            # twice.
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

    def _say_end(self, number: int, code: int) -> None:
        """Names a process that has failed, which may not have said it."""
        name = ""
        with contextlib.suppress(ValueError):
            name = f", {signal.Signals(code - 128).name}"
        with self._is_writing, contextlib.suppress(OSError):
            sys.stderr.write(
                f"Process {number} of {len(self._all)} has ended with exit "
                f"code {code}{name}.\n"
            )
            sys.stderr.flush()

    def _copy(
        self, source: BinaryIO, ended: int, sink: TextIO, prefix: str
    ) -> None:
        """Copies whole lines, until there are no more."""
        with source:
            for line in _lines(source.fileno(), ended):
                text = line.decode(errors="backslashreplace")
                # Whoever read this may be gone; the process goes on.
                with self._is_writing, contextlib.suppress(OSError):
                    sink.write(f"{prefix}{text}\n")
                    sink.flush()

    @contextlib.contextmanager
    def _passing_signals_on(self) -> Iterator[None]:
        def pass_on(number: int, frame: FrameType | None) -> None:
            del frame
            self._received.append(number)
            self._signal(number)

        passed_on = [
            each
            for each in (signal.Signals[name] for name in _SIGNALS)
            # Of `nohup`, which the processes inherit.
            if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN
        ]
        before = {each: signal.signal(each, pass_on) for each in passed_on}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _signal(self, number: int) -> None:
        for process in self._all:
            process.send_signal(number)

    def _kill(self) -> None:
        """Ends them, and what they started."""
        for process in self._all:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _lines(source: int, ended: int) -> Iterator[bytes]:
    """The lines of a process, without their ends.

    Another one that it has left behind may have the same output for ever. So
    the end of the process is the end of what it has written.

    Args:
        ended: What can be read when it has ended.
    """
    rest, is_last = b"", False
    while not is_last:
        ready, _, _ = select.select([source, ended], [], [])
        is_last = ended in ready
        data = os.read(source, _waiting(source) if is_last else _PIECE_BYTES)
        is_last |= not data
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _waiting(source: int) -> int:
    """How many bytes can be read at once."""
    # Windows has neither, and imports this module for its error message.
    import fcntl
    import termios

    number = array.array("i", [0])
    fcntl.ioctl(source, termios.FIONREAD, number)
    return number[0]
