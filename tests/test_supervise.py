"""The command `supervise`, in processes that find each other as starters define."""

import os
import socket
import subprocess
import sys

import pytest

from keras_tpu_estimator.base.hosts import supervising
from tests.many_hosts.launching import free_port, run_together

_SCRIPT = """
import os, signal, sys
number, restarts = os.environ["KTE_PROCESS_ID"], os.environ["KTE_RESTARTS"]
assert "JAX_COORDINATOR_BIND_ADDRESS" not in os.environ
print(number, "of", os.environ["KTE_NUM_PROCESSES"], restarts, sys.argv[1:], flush=True)
if (number, restarts) == ("1", "0"):
    os.kill(os.getpid(), signal.SIGKILL)
if restarts == "0":
    signal.pause()
"""


def test_hosts_restart_together(tmp_path):
    """The variables are those of torchrun, whose port the processes do not use."""
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    # A process that listened there would not be found.
    shared["JAX_COORDINATOR_BIND_ADDRESS"] = "127.0.0.1:1"
    ended = run_together(
        *("-m", "keras_tpu_estimator", "supervise"),
        *(str(script), "--max-restarts", "0"),
        environments=[
            {**shared, "WORLD_SIZE": "2", "RANK": str(number)} for number in range(2)
        ],
    )
    assert [host.code for host in ended] == [0, 0]
    for number, host in enumerate(ended):
        for restarts in range(2):
            line = f"[{number}] {number} of 2 {restarts} ['--max-restarts', '0']"
            assert line in host.lines(0)
    assert "Process 1 of 2 has ended with exit code 137, SIGKILL." in ended[1].lines(0)
    assert "Restart 1 of at most 100 in 1 s." in ended[0].lines(0)


def test_one_host_needs_no_cluster(tmp_path):
    (tmp_path / "script.py").write_text("import sys; sys.exit(3)")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KTE_")}
    ended = subprocess.run(
        [sys.executable, "-m", "keras_tpu_estimator", "supervise", "script.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 3
    assert ended.stderr.splitlines() == [
        "Process 0 of 1 has ended with exit code 3.",
        "No restart: exit code 3 means that it would fail again.",
    ]


def test_port_of_the_leader_must_be_free(monkeypatch, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for name, value in zip(
            ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID"),
            (address, "2", "0"),
            strict=True,
        ):
            monkeypatch.setenv(f"KTE_{name}", value)
        assert supervising.main("supervise", ["x.py"]) == 75
    message = f"The supervisor of process 0 must listen at {address}."
    assert message in capfd.readouterr().err


@pytest.mark.parametrize(
    ("variables", "options", "message"),
    [
        ({"KTE_NUM_PROCESSES": "2"}, (), "A cluster must be defined by"),
        ({}, ("--min-processes", "2"), "must be at most the number of processes, 1"),
        ({}, ("--timeout", "0"), "must be a positive integer"),
    ],
)
def test_arguments_are_checked(variables, options, message, monkeypatch, capfd):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        supervising.main("supervise", [*options, "x.py"])
    assert message in capfd.readouterr().err
