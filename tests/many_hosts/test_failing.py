"""Tests that all hosts end when one fails, report the reason, and can be restarted.

All starts use one directory, where each continues the training.
"""

import dataclasses
import functools
import re

import numpy as np
import pytest
from helpers import some_slow

import keras_tpu_estimator as kte
from tests.forking.forks import forking
from tests.many_hosts.failing_program import (
    EXIT_CODE,
    TIMEOUT_SECS,
    Scenario,
    time_of_failure,
)
from tests.many_hosts.launching import launch
from tests.torture.killing import read

# The failure of one host, and the message of the other host or of JAX.
FAILURES = {
    "killed worker": (
        {"host": 1, "failure": "kill", "phase": "step", "at": 6},
        "Host 1 ",
    ),
    "killed chief": (
        {"host": 0, "failure": "kill", "phase": "save", "at": 12},
        "Host 0, which coordinates the others, is gone|"
        "leader task was preempted/died/restarted",
    ),
    "error in a hook": (
        {"host": 1, "failure": "raise", "phase": "step", "at": 14},
        "Host 1 has failed in train: OSError: This host fails.",
    ),
    "exit in a hook": (
        {"host": 1, "failure": "exit", "phase": "step", "at": 14},
        "Host 1 has left train with exit code 3.",
    ),
    "error in a save": (
        {"host": 0, "failure": "raise", "phase": "save", "at": 16},
        "Host 0 has failed in saving a checkpoint: OSError: This host fails",
    ),
    "hanging evaluation": (
        {"host": 1, "failure": "hang", "phase": "evaluation", "at": 16},
        "Host 1 did not answer about evaluate within 5 seconds",
    ),
    "exit after all": (
        {"host": 1, "failure": "exit", "phase": "after"},
        "Host 1 did not answer about evaluate, because its program has ended, "
        "with exit code 3",
    ),
}
# The other host reports it like an error in a hook.
RARE = {"error in a save"}
# Seconds after the timeout in which the processes must end.
_MARGIN_SECS = 10


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("failing")


@pytest.fixture(scope="module")
def ended_hosts(directory):
    """Returns the ended hosts of a start, which continues the earlier starts."""
    scenario = Scenario(str(directory / "run"), steps=20)

    @functools.cache
    def run(name):
        failure = {"undisturbed": str(directory / "undisturbed")}
        if name in FAILURES:
            failure, _ = FAILURES[name]
        with forking("package"):
            return _launched(dataclasses.replace(scenario, **failure))

    return run


def _launched(scenario):
    return launch("-m", "tests.many_hosts.failing_program", scenario.as_json())


@pytest.mark.rows(4)
@pytest.mark.parametrize("name", some_slow(FAILURES, RARE))
def test_all_end_soon_and_report_the_reason(name, ended_hosts):
    failure, reason = FAILURES[name]
    ended, failing = ended_hosts(name), failure["host"]
    assert ended.code
    # Both have failed.
    failed = re.findall("Process ([0-9]) of 2 has ended with", ended.text)
    assert sorted(failed) == ["0", "1"], ended.text
    assert re.search(reason, ended.log(1 - failing)), ended.text
    # JAX aborts no process that is alive.
    if failure["failure"] != "kill":
        assert "SIGABRT" not in ended.text
    secs = ended.ended_at - time_of_failure(ended.lines(failing))
    assert secs < TIMEOUT_SECS + _MARGIN_SECS


@pytest.mark.parametrize("name", ["exit in a hook", "exit after all"])
def test_all_end_with_the_exit_code_of_one_host(name, ended_hosts):
    failure, _ = FAILURES[name]
    ended = ended_hosts(name)
    codes = re.findall("Process [0-9] of 2 .* exit code (.*)[.]", ended.text)
    assert codes == [str(EXIT_CODE)] * 2
    assert ended.code == EXIT_CODE
    # No host waits for a timeout.
    secs = ended.ended_at - time_of_failure(ended.lines(failure["host"]))
    assert secs < TIMEOUT_SECS


def test_launcher_names_the_killed_host(ended_hosts):
    for name, failing in (("killed worker", 1), ("killed chief", 0)):
        assert ended_hosts(name).code == 137
        message = f"Process {failing} of 2 has ended with exit code 137, SIGKILL"
        assert message in ended_hosts(name).text


def test_restarted_training_is_bit_equal(ended_hosts, directory):
    ended = ended_hosts("nothing")
    assert ended.code == 0, ended.text
    resumed, undisturbed = (
        read(kte.latest_checkpoint(str(directory / name)))
        for name in ("run", "undisturbed")
    )
    assert resumed.keys() == undisturbed.keys()
    assert resumed["global_step"] == 20
    for name, value in resumed.items():
        assert np.array_equal(value, undisturbed[name]), name


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("differs", "message"),
    [
        ("steps", "same max_steps for train. Received: host 0 has 20; host 1"),
        ("model_dir", "same model_dir for train. Received: host 0 has '"),
        ("layers", r"same variables \(of model_fn\) for train. Received: host"),
    ],
)
@pytest.mark.usefixtures("forked_programs")
def test_hosts_that_differ(differs, message, tmp_path):
    scenario = Scenario(str(tmp_path / "run"), steps=20, host=1, differs=differs)
    ended = _launched(scenario)
    assert ended.code == 1
    for host in range(2):
        errors = re.findall("ValueError: All 2 hosts .*", ended.log(host))
        assert errors and re.search(message, errors[0]), ended.text
