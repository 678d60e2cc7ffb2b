"""When one host fails, all end, say why, and continue when they are started again.

The starts follow each other in one directory, where the run continues.
"""

import dataclasses
import functools
import re

import numpy as np
import pytest
from helpers import some_slow

import keras_tpu_estimator as kte
from tests.forking.forks import forking
from tests.many_hosts.failing_program import EXIT_CODE, TIMEOUT_SECS, Life, time_of_fate
from tests.many_hosts.launching import launch
from tests.torture.killing import read

# The event on each host, and the message of the other host or of JAX.
FATES = {
    "killed worker": (
        {"host": 1, "fate": "kill", "phase": "step", "at": 6},
        "Host 1 ",
    ),
    "killed chief": (
        {"host": 0, "fate": "kill", "phase": "save", "at": 12},
        "Host 0, which coordinates the others, is gone|"
        "leader task was preempted/died/restarted",
    ),
    "error in a hook": (
        {"host": 1, "fate": "raise", "phase": "step", "at": 14},
        "Host 1 has failed in train: OSError: There is no such luck.",
    ),
    "exit in a hook": (
        {"host": 1, "fate": "exit", "phase": "step", "at": 14},
        "Host 1 has left train with exit code 3.",
    ),
    "error in a save": (
        {"host": 0, "fate": "raise", "phase": "save", "at": 16},
        "Host 0 has failed in saving a checkpoint: OSError: There is no such",
    ),
    "hanging evaluation": (
        {"host": 1, "fate": "hang", "phase": "evaluation", "at": 16},
        "Host 1 did not answer about evaluate within 5 seconds",
    ),
    "exit after all": (
        {"host": 1, "fate": "exit", "phase": "after"},
        "Host 1 did not answer about evaluate, because its program has ended, "
        "with exit code 3",
    ),
}
# The other host reports it like an error in a hook.
SELDOM = {"error in a save"}
# Seconds after the timeout in which the processes must end.
_MARGIN_SECS = 10


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("failing")


@pytest.fixture(scope="module")
def lived(directory):
    """The result of a start, which continues where the earlier starts ended."""
    life = Life(str(directory / "run"), steps=20)

    @functools.cache
    def run(name):
        fate = {"undisturbed": str(directory / "undisturbed")}
        if name in FATES:
            fate, _ = FATES[name]
        with forking("package"):
            return _launched(dataclasses.replace(life, **fate))

    return run


def _launched(life):
    return launch("-m", "tests.many_hosts.failing_program", life.as_json())


@pytest.mark.rows(4)
@pytest.mark.parametrize("name", some_slow(FATES, SELDOM))
def test_all_end_soon_and_say_why(name, lived):
    fate, reason = FATES[name]
    ended, victim = lived(name), fate["host"]
    assert ended.code
    # Each of them has failed.
    failed = re.findall("Process ([0-9]) of 2 has ended with", ended.text)
    assert sorted(failed) == ["0", "1"], ended.text
    assert re.search(reason, ended.log(1 - victim)), ended.text
    secs = ended.ended_at - time_of_fate(ended.lines(victim))
    assert secs < TIMEOUT_SECS + _MARGIN_SECS


@pytest.mark.parametrize("name", ["exit in a hook", "exit after all"])
def test_all_end_with_the_code_of_the_host_that_exits(name, lived):
    fate, _ = FATES[name]
    ended = lived(name)
    codes = re.findall("Process [0-9] of 2 .* exit code (.*)[.]", ended.text)
    assert codes == [str(EXIT_CODE)] * 2
    assert ended.code == EXIT_CODE
    # Nobody waits for a time-out.
    secs = ended.ended_at - time_of_fate(ended.lines(fate["host"]))
    assert secs < TIMEOUT_SECS


def test_the_launcher_names_the_killed_host(lived):
    for name, victim in (("killed worker", 1), ("killed chief", 0)):
        assert lived(name).code == 137
        message = f"Process {victim} of 2 has ended with exit code 137, SIGKILL"
        assert message in lived(name).text


def test_what_was_restarted_is_equal_to_the_bit(lived, directory):
    ended = lived("nothing")
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
    ("differs", "told"),
    [
        ("steps", "same max_steps for train. Received: host 0 has 20; host 1"),
        ("model_dir", "same model_dir for train. Received: host 0 has '"),
        ("layers", r"same variables \(of model_fn\) for train. Received: host"),
    ],
)
@pytest.mark.usefixtures("forked_programs")
def test_hosts_that_differ(differs, told, tmp_path):
    life = Life(str(tmp_path / "run"), steps=20, host=1, differs=differs)
    ended = _launched(life)
    assert ended.code == 1
    for host in range(2):
        errors = re.findall("ValueError: All 2 hosts .*", ended.log(host))
        assert errors and re.search(told, errors[0]), ended.text
