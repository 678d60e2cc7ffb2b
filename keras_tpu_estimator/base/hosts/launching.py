"""The command that starts a script in several processes, as one cluster.

    python -m keras_tpu_estimator launch --processes 4 --cores 2 script.py ...

The environment of each process has the variables that
`keras_tpu_estimator.initialize` reads. Each line of output begins with the
number of its process. When a process fails, the command names it, ends the
others, and starts all again or returns its exit code.
"""

import argparse
import os
from collections.abc import Mapping, Sequence

from keras_tpu_estimator.base.common.system import check_is_posix, free_port
from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.detection import ADDRESS_VARIABLE
from keras_tpu_estimator.base.hosts.forwarding import ForwardedSignals
from keras_tpu_estimator.base.hosts.launch_options import (
    add_restart_options,
    add_script,
    command_of,
    positive,
)
from keras_tpu_estimator.base.hosts.output_lines import show_all_characters
from keras_tpu_estimator.base.hosts.process_environment import environment_for
from keras_tpu_estimator.base.hosts.restarting import RestartPolicy, run_with_restarts
from keras_tpu_estimator.base.hosts.started_processes import Outcome, StartedProcesses

_HOST = "127.0.0.1"
_CORES_FLAG = "--xla_force_host_platform_device_count"


def main(name: str, arguments: Sequence[str]) -> int:
    """Runs the command, and returns 0 or the exit code of the first failed process.

    The code is 128 + signal for a process that a signal ended.
    """
    show_all_characters()
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
    command = command_of(options)
    signals = ForwardedSignals()

    def start(slots: tuple[int, ...], restarts: int) -> Outcome:
        # An earlier process may still hold the last port.
        address = f"{_HOST}:{free_port(_HOST)}"
        environments = [
            # Each process uses one GPU, if there are any.
            environment_for(
                Cluster(address, len(slots), number, local_id=slot),
                os.environ | _simulated(os.environ, options.cores),
                restarts,
            )
            # Only processes of this machine reach the coordinator.
            | {"JAX_COORDINATOR_BIND_ADDRESS": address, ADDRESS_VARIABLE: address}
            for number, slot in enumerate(slots)
        ]
        outcome = StartedProcesses(command, environments, options.grace, signals).run()
        return outcome.in_slots(slots)

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
        type=positive,
        required=True,
        help="number of processes",
    )
    parser.add_argument(
        "--cores",
        type=positive,
        help="number of CPU devices to simulate in each process; by default "
        "each has the devices that JAX finds, and at most one GPU",
    )
    add_restart_options(parser, max_restarts=0)
    add_script(parser)
    return parser


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
