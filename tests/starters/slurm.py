"""A cluster of SLURM on this machine, with one node."""

import contextlib
import os
import pathlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

_START_SECS = 30
_CONFIGURATION = """
ClusterName=starters
SlurmctldHost={host}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:4
"""


@contextlib.contextmanager
def slurm() -> Iterator[dict[str, str]]:
    """Starts SLURM, which needs a running `munged`; yields the variables of commands.

    Raises:
        TimeoutError: SLURM did not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "slurm.conf")
        path.write_text(_configuration(folder))
        environment = {"SLURM_CONF": str(path)}
        daemons = [
            subprocess.Popen([name, "-D"], env=os.environ | environment)
            for name in ("slurmctld", "slurmd")
        ]
        try:
            _wait_for_node(environment)
            yield environment
        finally:
            for daemon in daemons:
                daemon.terminate()
            for daemon in daemons:
                daemon.wait()


def _configuration(folder: str) -> str:
    for name in ("spool", "state"):
        pathlib.Path(folder, name).mkdir()
    with socket.socket() as first, socket.socket() as second:
        first.bind(("", 0))
        second.bind(("", 0))
        return _CONFIGURATION.format(
            folder=folder,
            host=socket.gethostname(),
            user=pathlib.Path(folder).owner(),
            cpus=os.cpu_count(),
            controller=first.getsockname()[1],
            daemon=second.getsockname()[1],
        )


def _wait_for_node(environment: dict[str, str]) -> None:
    limit = time.monotonic() + _START_SECS
    while time.monotonic() < limit:
        shown = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if "idle" in shown.stdout:
            return
        time.sleep(0.5)
    raise TimeoutError(f"SLURM must start in {_START_SECS} s. Received: {shown}")
