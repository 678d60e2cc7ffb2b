"""Starts programs on several hosts, and reads their output."""

import contextlib
import dataclasses
import functools
import io
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import psutil

from keras_tpu_estimator.base.hosts import launching as launcher
from keras_tpu_estimator.base.hosts.detection import ADDRESS_VARIABLE

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = ("-m", "tests.many_hosts.program")
_RESULT = "RESULT "


@dataclasses.dataclass(frozen=True)
class Ended:
    """A program that has ended on all hosts.

    Attributes:
        code: The exit code of the first host that failed, or 0.
        text: The output of the hosts, each line with its host's number, and the
            output of the launcher.
        ended_at: The time when the last host ended, in seconds since 1970.
    """

    code: int
    text: str
    ended_at: float

    def lines(self, host: int) -> list[str]:
        """Returns the output lines of a host."""
        prefix = f"[{host}] "
        return [
            line.removeprefix(prefix)
            for line in self.text.splitlines()
            if line.startswith(prefix)
        ]

    def log(self, host: int) -> str:
        """Returns the output of a host without its results."""
        return "\n".join(
            line for line in self.lines(host) if not line.startswith(_RESULT)
        )

    @functools.cached_property
    def results(self) -> dict[int, dict[str, Any]]:
        """The results of scenarios by host and name."""
        results: dict[int, dict[str, Any]] = {}
        for line in self.text.splitlines():
            host, _, said = line.partition("] ")
            if said.startswith(_RESULT):
                named = json.loads(said.removeprefix(_RESULT))
                results.setdefault(int(host[1:]), {}).update(named)
        return results

    def each(self, name: str) -> list[Any]:
        """Returns the results of one scenario in the order of hosts."""
        return [self.results[host][name] for host in sorted(self.results)]


def launch(
    *script: str,
    processes: int = 2,
    cores: int = 4,
    limit_secs: float = 120,
) -> Ended:
    """Runs a script on several hosts.

    Args:
        *script: The path, or "-m" and a module, and the arguments.
        processes: The number of hosts. Defaults to 2.
        cores: The number of simulated cores of each host. Defaults to 4.
        limit_secs: The time after which the processes print their tracebacks and are
            killed.
    """
    arguments = ["--processes", str(processes), "--cores", str(cores), *script]
    written = io.StringIO()
    timer = threading.Timer(limit_secs, _end_hosts, [written])
    with (
        contextlib.chdir(ROOT),
        mock.patch.dict(os.environ, PYTHONFAULTHANDLER="1"),
        contextlib.redirect_stdout(written),
        contextlib.redirect_stderr(written),
    ):
        timer.start()
        try:
            # The command would import Keras again.
            code = launcher.main("launch", arguments)
        finally:
            timer.cancel()
            timer.join()
    return Ended(code, written.getvalue(), time.time())


def _end_hosts(written: io.StringIO) -> None:
    """Makes all hosts print their tracebacks and end."""
    written.write("\nThe time limit has passed. All hosts are killed.\n")
    for child in psutil.Process().children():
        if ADDRESS_VARIABLE in child.environ():
            child.send_signal(signal.SIGABRT)


def launch_cluster(*script: str, cores: int = 2) -> dict[str, Ended]:
    """Runs a script as chief, worker and evaluator of a TF_CONFIG.

    Args:
        *script: See `launch`.
        cores: The number of simulated cores of each process. Defaults to 2.

    Returns:
        The ended processes by task type.
    """
    chief = f"127.0.0.1:{free_port()}"
    cluster = {"chief": [chief], "worker": ["127.0.0.1:1"]}
    kinds = (*cluster, "evaluator")
    tasks = [{"cluster": cluster, "task": {"type": kind, "index": 0}} for kind in kinds]
    ended = run_together(
        *script,
        environments=[
            {
                "TF_CONFIG": json.dumps(task),
                "XLA_FLAGS": with_cores(cores),
                "JAX_COORDINATOR_BIND_ADDRESS": chief,
            }
            for task in tasks
        ],
    )
    return dict(zip(kinds, ended, strict=True))


def run_together(
    *script: str,
    environments: Sequence[Mapping[str, str]],
    limit_secs: float = 120,
) -> list[Ended]:
    """Runs a script in several processes at the same time, without the launcher.

    Args:
        *script: See `launch`.
        environments: The additional environment variables of each process.
        limit_secs: See `launch`.

    Returns:
        The ended processes, each as host 0.
    """
    started = [
        subprocess.Popen(
            [sys.executable, *script],
            cwd=ROOT,
            env=os.environ | {"PYTHONFAULTHANDLER": "1"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for environment in environments
    ]
    timer = threading.Timer(
        limit_secs,
        lambda: [each.send_signal(signal.SIGABRT) for each in started],
    )
    timer.start()
    texts = [each.communicate()[0] for each in started]
    timer.cancel()
    return [
        Ended(each.returncode, _as_of_host(0, text), time.time())
        for each, text in zip(started, texts, strict=True)
    ]


def _as_of_host(host: int, text: str) -> str:
    return "\n".join(f"[{host}] {line}" for line in text.splitlines())


def with_cores(count: int) -> str:
    """Returns the flags of this process with another number of cores."""
    # If a flag is repeated, the last one counts.
    flags = os.environ.get("XLA_FLAGS", "")
    return f"{flags} --xla_force_host_platform_device_count={count}"


def free_port() -> int:
    """Returns a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
