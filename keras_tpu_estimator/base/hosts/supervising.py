"""The command that starts a script on this host, as a part of a job that restarts.

    python -m keras_tpu_estimator supervise --max-restarts 100 train.py ...

Each host runs it, or each process that a starter starts. If a process of the job fails,
or a host is lost, all processes stop, and start again from the last checkpoint.
"""

import argparse
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence

from keras_tpu_estimator.base.common.system import RETRY_CODE, check_is_posix
from keras_tpu_estimator.base.hosts import detection
from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.forwarding import ForwardedSignals
from keras_tpu_estimator.base.hosts.job_leader import JobLeader
from keras_tpu_estimator.base.hosts.joined_supervisors import JoinedSupervisors
from keras_tpu_estimator.base.hosts.launch_options import (
    add_restart_options,
    add_script,
    command_of,
    positive,
)
from keras_tpu_estimator.base.hosts.output_lines import show_all_characters
from keras_tpu_estimator.base.hosts.process_environment import environment_for
from keras_tpu_estimator.base.hosts.restarting import RestartPolicy
from keras_tpu_estimator.base.hosts.started_processes import StartedProcesses
from keras_tpu_estimator.base.hosts.supervisor import Supervisor
from keras_tpu_estimator.base.hosts.supervisor_connection import Start

_LOCAL_HOST = "127.0.0.1"
# More than the leader waits for others to read the end of the job.
_JOIN_SECS = 15.0


def main(name: str, arguments: Sequence[str]) -> int:
    """Runs the command, and returns 0 or the exit code of the job.

    It is that of the process that failed first in the last start; 75 if the supervisor
    of process 0 is not reached, 69 if too few join.
    """
    show_all_characters()
    parser = _parser(name)
    options = parser.parse_args(arguments)
    check_is_posix(f"The command `{name}`", "Run it in WSL.")
    try:
        cluster = detection.find_cluster(int(options.wait))
        policy = RestartPolicy(
            cluster.num_processes, options.max_restarts, options.min_processes
        )
        listener = None if cluster.process_id else _listener(cluster)
    except (RuntimeError, ValueError) as error:
        parser.error(str(error))
    except OSError as error:
        sys.stderr.write(
            "The supervisor of process 0 must listen at "
            f"{cluster.coordinator_address}. Received: {error}. Start it on this "
            "machine only once, or choose another port.\n"
        )
        return RETRY_CODE
    return _supervise(cluster, policy, listener, options)


def _supervise(
    cluster: Cluster,
    policy: RestartPolicy,
    listener: socket.socket | None,
    options: argparse.Namespace,
) -> int:
    """Runs the supervisor of this host, and with a listener also the leader."""
    signals = ForwardedSignals()
    with contextlib.ExitStack() as stack:
        stack.enter_context(signals.active())
        host, _, port = (cluster.coordinator_address or "").rpartition(":")
        if listener is None:
            leader = host.strip("[]"), int(port)
        else:
            leader = _LOCAL_HOST, listener.getsockname()[1]
            job_leader = JobLeader(
                JoinedSupervisors(listener, cluster.num_processes, options.timeout),
                host or _LOCAL_HOST,
                policy,
                wait_secs=options.wait,
                end_secs=options.grace + options.timeout,
                signals=signals,
            )
            stack.enter_context(_running(job_leader))
        return Supervisor(
            cluster.process_id,
            leader,
            lambda start: StartedProcesses(
                command_of(options),
                [_environment(start, cluster)],
                options.grace,
                signals,
            ),
            wait_secs=options.wait,
            timeout=options.timeout,
            signals=signals,
        ).run()


def _environment(start: Start, cluster: Cluster) -> dict[str, str]:
    """Returns the environment of the process of a start."""
    member = Cluster(start.address, start.count, start.number, cluster.local_id)
    environment = environment_for(member, os.environ, start.restarts)
    # Each start has another port.
    environment.pop("JAX_COORDINATOR_BIND_ADDRESS", None)
    if start.count != cluster.num_processes:
        # It has another number of processes.
        environment.pop("TF_CONFIG", None)
    return environment


@contextlib.contextmanager
def _running(leader: JobLeader) -> Iterator[None]:
    """Runs the leader of a job on a thread, in a `with` block."""
    thread = threading.Thread(target=leader.run, daemon=True)
    thread.start()
    yield
    thread.join(_JOIN_SECS)


def _listener(cluster: Cluster) -> socket.socket:
    """Returns the socket at which the supervisors of all hosts reach this process."""
    if cluster.coordinator_address is None:
        return socket.create_server((_LOCAL_HOST, 0))
    address = "", int(cluster.coordinator_address.rpartition(":")[2])
    if socket.has_dualstack_ipv6():
        family = socket.AF_INET6
        return socket.create_server(address, family=family, dualstack_ipv6=True)
    return socket.create_server(address)


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m keras_tpu_estimator {name}",
        description="Starts a script as one process of a cluster, and restarts it with "
        "those of the other hosts, on which this command also runs.",
    )
    add_restart_options(parser, max_restarts=100)
    parser.add_argument(
        "--wait",
        type=positive,
        default=600,
        metavar="SECONDS",
        help="seconds to wait for the supervisors of other hosts, at the start and "
        "after they were lost (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        default=30,
        metavar="SECONDS",
        help="seconds of silence after which the supervisor of another host is lost "
        "(default: %(default)s)",
    )
    add_script(parser)
    return parser
