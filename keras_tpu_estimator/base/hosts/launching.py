"""The command that starts a script in several processes, as one cluster.

    python -m keras_tpu_estimator launch --processes 4 --cores 2 script.py ...

The environment of each process has the variables that
`keras_tpu_estimator.initialize` reads. Each line of output begins with the
number of its process. When a process fails, the command names it, ends the
others, and starts all again or returns its exit code.
"""

import argparse
import io
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence

from keras_tpu_estimator.base.common.machine import check_is_posix
from keras_tpu_estimator.base.hosts import parent_process, restart_count
from keras_tpu_estimator.base.hosts.detection import (
    ADDRESS_VARIABLE,
    COUNT_VARIABLE,
    ID_VARIABLE,
)
from keras_tpu_estimator.base.hosts.forwarding import ForwardedSignals
from keras_tpu_estimator.base.hosts.restarting import RestartPolicy, run_with_restarts
from keras_tpu_estimator.base.hosts.started_processes import Outcome, StartedProcesses

_HOST = "127.0.0.1"
_CORES_FLAG = "--xla_force_host_platform_device_count"


def main(name: str, arguments: Sequence[str]) -> int:
    """Runs the command, and returns 0 or the exit code of the first failed process.

    The code is 128 + signal for a process that a signal ended.
    """
    for stream in (sys.stdout, sys.stderr):
        # The terminal may not support all characters of the output.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    parser = _parser(name)
    options = parser.parse_args(arguments)
    try:
        policy = RestartPolicy(
            options.processes, options.max_restarts, options.min_processes
        )
    except ValueError as error:
        parser.error(str(error))
    check_is_posix(
        f"The command `{name}`",
        "Start the script once, which uses all devices of this machine, or "
        "run the command in WSL.",
    )
    command = [sys.executable, *(["-m"] if options.module else [])]
    command += [options.script, *options.arguments]
    signals = ForwardedSignals()

    def start(slots: tuple[int, ...], restarts: int) -> Outcome:
        # An earlier process may still hold the last port.
        address = f"{_HOST}:{_free_port()}"
        environments = [
            _environment(os.environ, address, len(slots), number)
            | _simulated(os.environ, options.cores)
            | {restart_count.VARIABLE: str(restarts)}
            for number in range(len(slots))
        ]
        for slot, environment in zip(slots, environments, strict=True):
            # Each process uses one GPU, if there are any.
            environment.setdefault("JAX_LOCAL_DEVICE_IDS", str(slot))
        return StartedProcesses(command, environments, options.grace, signals).run()

    with signals.active():
        return run_with_restarts(policy, start, signals)


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
        "--max-restarts",
        type=_natural,
        default=0,
        metavar="N",
        help="number of times that all processes start again after a signal, a lost "
        "process or an error of the storage (default: %(default)s)",
    )
    parser.add_argument(
        "--min-processes",
        type=_positive,
        metavar="M",
        help="number of processes with which the job may continue, if one of them "
        "fails first twice (default: all)",
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


def _natural(text: str) -> int:
    return 0 if re.fullmatch("0+", text) else _positive(text)


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
