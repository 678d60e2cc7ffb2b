"""Tests starts by arguments, and by environment variables of other launchers."""

import pytest

from tests.many_hosts.launching import free_port, run_together, with_cores

pytestmark = pytest.mark.usefixtures("forked_programs")

STARTED = ("-m", "tests.many_hosts.started_program")
ONE_CORE = {"XLA_FLAGS": with_cores(1)}


def _arguments(port, number):
    return {}, (f"127.0.0.1:{port}", "2", str(number), "60")


def _slurm(port, number):
    variables = {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": str(number),
    }
    return variables | {"JAX_COORDINATOR_PORT": str(port)}, ()


def _open_mpi(port, number):
    variables = {
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": str(number),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(number),
    }
    return variables | {"JAX_COORDINATOR_PORT": str(port)}, ()


def started(*ways):
    """Returns the ended processes, each with its environment and arguments."""
    return run_together(
        *STARTED,
        environments=[
            ONE_CORE | variables | {"STARTED_ARGUMENTS": " ".join(arguments)}
            for variables, arguments in ways
        ],
    )


@pytest.mark.parametrize("way", [_arguments, _slurm, _open_mpi])
def test_two_processes_find_each_other(way):
    port = free_port()
    ended = started(*(way(port, number) for number in range(2)))
    for number, each in enumerate(ended):
        assert each.code == 0, each.text
        assert each.each("start") == [
            {"number": number, "of": 2, "chief": number == 0, "cores": 2}
        ]


def test_missing_coordinator_is_an_error():
    address = f"127.0.0.1:{free_port()}"
    (ended,) = started(({}, (address, "2", "1", "3")))
    assert ended.code == 1, ended.text
    assert "TimeoutError: All 2 processes must join at" in ended.text
    assert address in ended.text
