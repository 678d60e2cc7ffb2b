"""When one host fails, all end, say why, and go on when they are started again.

The starts follow each other in one directory, where the run goes on.
"""

import dataclasses
import re

import numpy as np
import pytest

import keras_tpu_estimator as kte
from tests.forking.forks import forking
from tests.many_hosts.failing_program import EXIT_CODE
from tests.many_hosts.failing_program import TIMEOUT_SECS
from tests.many_hosts.failing_program import Life
from tests.many_hosts.failing_program import time_of_fate
from tests.many_hosts.launching import launch
from tests.torture.killing import read

# What happens to which host, and what the other one then says, or JAX for it.
FATES = {
    "killed worker": (
        {"host": 1, "fate": "kill", "phase": "step", "at": 6},
        "Host 1 ",
    ),
    "killed chief": (
        {"host": 0, "fate": "kill", "phase": "save", "at": 12},
        "Host 0, through which all others talk, is gone|"
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
        "Host 1 should say something about evaluate within 5 seconds",
    ),
    "exit after all": (
        {"host": 1, "fate": "exit", "phase": "after"},
        "Host 1 should say something about evaluate. Received: its program "
        "has come to its end, with exit code 3",
    ),
}
# Beyond the time-out, for the processes to come to their end.
_MARGIN_SECS = 10


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("failing")


@pytest.fixture(scope="module")
def lives(directory):
    """All starts, by what happened."""
    life = Life(str(directory / "run"), steps=20)
    undisturbed = dataclasses.replace(
        life, undisturbed=str(directory / "undisturbed")
    )
    with forking("package"):
        ended = {
            name: _lived(dataclasses.replace(life, **fate))
            for name, (fate, _) in FATES.items()
        }
        ended["none"] = _lived(undisturbed)
    return ended


def _lived(life):
    return launch("-m", "tests.many_hosts.failing_program", life.as_json())


@pytest.mark.parametrize("name", FATES)
def test_all_end_soon_and_say_why(name, lives):
    fate, reason = FATES[name]
    ended, victim = lives[name], fate["host"]
    assert ended.code
    # Each of them has failed.
    failed = re.findall("Process ([0-9]) of 2 has ended with", ended.text)
    assert sorted(failed) == ["0", "1"], ended.text
    assert re.search(reason, ended.log(1 - victim)), ended.text
    secs = ended.ended_at - time_of_fate(ended.lines(victim))
    assert secs < TIMEOUT_SECS + _MARGIN_SECS


@pytest.mark.parametrize("name", ["exit in a hook", "exit after all"])
def test_all_end_with_the_code_of_who_exits(name, lives):
    fate, _ = FATES[name]
    ended = lives[name]
    codes = re.findall("Process [0-9] of 2 .* exit code (.*)[.]", ended.text)
    assert codes == [str(EXIT_CODE)] * 2
    assert ended.code == EXIT_CODE
    # Nobody waits for a time-out.
    secs = ended.ended_at - time_of_fate(ended.lines(fate["host"]))
    assert secs < TIMEOUT_SECS


def test_the_launcher_names_who_was_killed(lives):
    for name, victim in (("killed worker", 1), ("killed chief", 0)):
        assert lives[name].code == 137
        message = f"Process {victim} of 2 has ended with exit code 137, SIGKILL"
        assert message in lives[name].text


def test_what_was_restarted_is_equal_to_the_bit(lives, directory):
    assert lives["none"].code == 0, lives["none"].text
    resumed, undisturbed = (
        read(kte.latest_checkpoint(str(directory / name)))
        for name in ("run", "undisturbed")
    )
    assert resumed.keys() == undisturbed.keys()
    assert resumed["global_step"] == 20
    for name, value in resumed.items():
        assert np.array_equal(value, undisturbed[name]), name


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
    ended = _lived(life)
    assert ended.code == 1
    for host in range(2):
        errors = re.findall("ValueError: All 2 hosts .*", ended.log(host))
        assert errors and re.search(told, errors[0]), ended.text
