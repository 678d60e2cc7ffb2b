"""Jobs whose hosts are supervised, and lost, stopped, preempted or cut off.

This program starts the supervisor of each host, as a scheduler does, and starts it
again after the host was lost.
"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil

from tests.many_hosts.launching import ROOT, Ended, free_port, with_cores
from tests.torture.interrupted import Job

# A host's supervisor is killed, stopped, or told to end; its connection is cut.
CAUSES = ("lost host", "stopped host", "preempted host", "cut connection")
_GRACE_SECS = 3
_TIMEOUT_SECS = 6
_WAIT_SECS = 120
_LIMIT_SECS = 600
_LOOK_SECS = 0.1


def run(job: Job, processes: int, *options: str, away_secs: float = 0) -> Ended:
    """Runs a job under one supervisor for each process.

    Args:
        job: The job.
        processes: The number of processes.
        options: Further options of the command.
        away_secs: Seconds after which a lost host returns. Defaults to at once.
    """
    leader = free_port()
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(_Link(leader, pathlib.Path(job.cut_file)))
        ports = [leader, *[link.port] * (processes - 1)]
        hosts = [
            _Host(job, number, ports, options, away_secs) for number in range(processes)
        ]
        for host in hosts:
            stack.callback(host.kill)
        deadline = time.monotonic() + _LIMIT_SECS
        while any([host.is_running() for host in hosts]):
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECS)
        codes = [host.process.returncode for host in hosts]
    text = "\n".join(host.text() for host in hosts)
    return Ended(next(filter(bool, codes), 0) or 0, text, time.time())


class _Host:
    """A host, whose supervisor starts again after it was lost or preempted."""

    def __init__(
        self,
        job: Job,
        number: int,
        ports: list[int],
        options: tuple[str, ...],
        away_secs: float,
    ):
        self._away_secs = away_secs
        self._return_at = 0.0
        self._path = pathlib.Path(f"{job.model_dir}-host-{number}.txt")
        self._command = [sys.executable, "-m", "keras_tpu_estimator", "supervise"]
        self._command += ["--grace", str(_GRACE_SECS), "--wait", str(_WAIT_SECS)]
        self._command += ["--timeout", str(_TIMEOUT_SECS), *options]
        self._command += ["-m", "tests.torture.interrupted", job.as_json()]
        self._environment = os.environ | {
            "KTE_COORDINATOR_ADDRESS": f"127.0.0.1:{ports[number]}",
            "KTE_NUM_PROCESSES": str(len(ports)),
            "KTE_PROCESS_ID": str(number),
            "XLA_FLAGS": with_cores(1),
        }
        self.process = self._start()

    def is_running(self) -> bool:
        """Starts the supervisor again if its host was lost; returns whether it runs."""
        if self._return_at:
            if time.monotonic() >= self._return_at:
                self._return_at, self.process = 0.0, self._start()
            return True
        code = self.process.poll()
        if code is None and _is_stopped(self.process.pid):
            # The others notice the silence, and the machine is replaced.
            time.sleep(2 * _TIMEOUT_SECS)
            self.kill()
        elif code not in (-signal.SIGKILL, 128 + signal.SIGTERM):
            return code is None
        self._return_at = time.monotonic() + self._away_secs
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def text(self) -> str:
        """Returns all output."""
        return self._path.read_text()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._path.open("ab") as output:
            return subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )


def _is_stopped(process: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() == psutil.STATUS_STOPPED
    return False


class _Link:
    """The network between the hosts and the leader, which a file cuts.

    Args:
        leader: The port of the leader.
        cut: The path of a file. All connections are cut when it is written.
    """

    def __init__(self, leader: int, cut: pathlib.Path):
        self._leader = leader
        self._cut = cut
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._has_ended = threading.Event()

    def __enter__(self) -> "_Link":
        for work in (self._accept, self._watch):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._has_ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._cut_all()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._leader))
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=_copy, args=ends, daemon=True).start()

    def _watch(self) -> None:
        while not self._has_ended.wait(_LOOK_SECS):
            if self._cut.exists():
                self._cut.unlink()
                self._cut_all()

    def _cut_all(self) -> None:
        while self._ends:
            with contextlib.suppress(OSError):
                self._ends.pop().shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with source, contextlib.suppress(OSError):
        while data := source.recv(4096):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)
