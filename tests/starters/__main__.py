"""Trains in two processes that real starters start.

    python -m tests.starters                    # All.
    python -m tests.starters torchrun "Open MPI"

Each must end with the weights of this package's own launcher. The commands are those on
the path, or in variables: `STARTERS_TORCHRUN="python3 -m torch.distributed.run"`.
"""

import contextlib
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.many_hosts.launching import ROOT, free_port
from tests.starters.slurm import slurm

_LIMIT_SECS = 600
_PROGRAM = (sys.executable, "-m", "tests.starters.starter_program")
_SUPERVISED = (sys.executable, "-m", "keras_tpu_estimator", "supervise", *_PROGRAM[1:])
_MPI = ("--oversubscribe", "-n", "2")
_SLURM = ("--ntasks=2", "--oversubscribe")


def _no_service() -> contextlib.AbstractContextManager[dict[str, str]]:
    return contextlib.nullcontext({})


@dataclasses.dataclass(frozen=True)
class Trial:
    """A starter, and how it starts two processes.

    Attributes:
        command: Its command, which a variable may replace.
        arguments: The arguments, before those of the program.
        variables: The variables that the user sets.
        service: Starts what the starter needs; yields further variables.
        program: The program that it starts.
    """

    command: str
    arguments: Sequence[str]
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    service: Callable[[], contextlib.AbstractContextManager[dict[str, str]]] = (
        _no_service
    )
    program: Sequence[str] = _PROGRAM


@contextlib.contextmanager
def _coordinator() -> Iterator[dict[str, str]]:
    """Yields the address that MPI's processes need without mpi4py."""
    yield {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}"}


_TRIALS = {
    "launch": Trial(
        f"{sys.executable} -m keras_tpu_estimator launch",
        ("--processes", "2"),
        program=_PROGRAM[1:],
    ),
    "Open MPI": Trial("mpirun", _MPI),
    "MPICH": Trial("mpiexec.mpich", ("-n", "2"), service=_coordinator),
    "MPICH with mpi4py": Trial("mpiexec.mpich", ("-n", "2")),
    "SLURM": Trial("srun", _SLURM, service=slurm),
    "MPICH in SLURM": Trial("srun", ("--mpi=pmi2", *_SLURM), service=slurm),
    "torchrun": Trial("torchrun", ("--no_python", "--nproc_per_node=2")),
    "supervise in Open MPI": Trial("mpirun", _MPI, program=_SUPERVISED),
    "supervise in SLURM": Trial("srun", _SLURM, service=slurm, program=_SUPERVISED),
    "Ray Train": Trial(
        f"{sys.executable} -m tests.starters.ray_job",
        (),
        {"RAY_TRAIN_V2_ENABLED": "1"},
        program=(),
    ),
}


def _results(trial: Trial, name: str, directory: str) -> list[dict[str, Any]]:
    """Runs a trial; returns the results of its processes, in their order."""
    variable = "STARTERS_" + re.sub("[^A-Z]", "_", name.upper())
    command = shlex.split(os.environ.get(variable, trial.command))
    with trial.service() as variables:
        ended = subprocess.run(
            [*command, *trial.arguments, *trial.program, directory],
            cwd=ROOT,
            env={
                "JAX_PLATFORMS": "cpu",
                # Containers have no other user.
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                **os.environ,
                **trial.variables,
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_SECS,
            check=False,
        )
    found = re.findall(r"RESULT (\{.*\})", ended.stdout)
    results = [json.loads(text) for text in found]
    if ended.returncode or len(results) != 2:
        sys.exit(f"{name} must start two processes. Received: {ended.stdout}")
    return sorted(results, key=lambda result: result["number"])


def main(names: Sequence[str]) -> None:
    """Runs the trials with these names, or all, and prints their outcomes."""
    expected: dict[str, Any] | None = None
    for name in dict.fromkeys(["launch", *(names or _TRIALS)]):
        with tempfile.TemporaryDirectory() as directory:
            results = _results(_TRIALS[name], name, directory)
        numbers = [(result["number"], result["count"]) for result in results]
        weights = [result["weights"] for result in results]
        expected = expected or weights[0]
        is_right = numbers == [(0, 2), (1, 2)] and weights == [expected] * 2
        if not is_right:
            sys.exit(f"{name} must train as `launch`. Received: {results}")
        sys.stdout.write(f"{name}: two processes, weights as with `launch`\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
