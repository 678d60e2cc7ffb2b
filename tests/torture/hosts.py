"""Trials with hosts, one of which fails at specific and random moments."""

import dataclasses
import itertools
import json
import os
import random
import re
import sys

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import numpy as np

from tests.many_hosts.failing_program import (
    EXIT_CODE,
    STEPS_PER_SAVE,
    TIMEOUT_SECS,
    Scenario,
    time_of_failure,
)
from tests.many_hosts.launching import Ended, launch
from tests.torture.figures import expect
from tests.torture.killing import check_equal, newest_step, read

_PHASES = ("step", "save", "evaluation")
_FAILURES = (
    ("kill", 0),
    ("kill", 1),
    ("raise", 0),
    ("raise", 1),
    ("exit", 0),
    ("exit", 1),
    ("hang", 1),
)
_WAYS = ("spawn", "forkserver", "subprocess", "fork")
# The time after the timeout in which all processes must end.
_MARGIN_SECS = 5
# The maximum lifetime after the first steps, and the pause of a loop.
_LIFE_SECS = 3.0
_PAUSE = 0.01
_ENDLESS = 10**9
_LAST_STEPS = 20
# Each number of hosts reads the checkpoints of each other number.
_MOVES = (2, 1, 4, 2, 4, 1, 2)
_CORES = 8
_NEAR = 1e-5
_MOVER = ("-m", "tests.torture.mover")


def fail_anywhere(directory: str) -> dict[str, object]:
    """Causes each kind of failure during a step, a save and an evaluation.

    Args:
        directory: An empty directory.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: A process did not end in time, or continued with other weights
            after a restart.
    """
    scenario = Scenario(os.path.join(directory, "failed"))
    starts, slowest = 0, 0.0
    for phase, (failure, host) in itertools.product(_PHASES, _FAILURES):
        if (phase, failure) == ("save", "exit"):
            # No user code runs in saves.
            continue
        starts += 1
        at = STEPS_PER_SAVE * starts
        met = dataclasses.replace(
            scenario, steps=_ENDLESS, host=host, failure=failure, phase=phase, at=at
        )
        ended = _launched(met)
        secs = _seconds_to_end(ended, host)
        slowest = max(slowest, secs)
        limit = TIMEOUT_SECS + _MARGIN_SECS
        code = ended.code
        is_right = failure != "exit" or code == EXIT_CODE
        expect(
            is_right,
            f"After exit({EXIT_CODE}), all must have this exit code, not {code}.",
        )
        what = f"After {failure} of host {host} in a {phase}, all end"
        expect(secs < limit, f"{what} within {limit} s, not {secs:.1f}.")
    _finish(scenario.model_dir, directory)
    return {
        "failures of one of two hosts": starts,
        "most seconds from a failure to the end of all": f"{slowest:.1f}",
        "of these after the failure is taken for one": TIMEOUT_SECS,
    }


def kill_and_restart(directory: str, kills: int) -> dict[str, object]:
    """Kills one of two hosts repeatedly, then lets both finish.

    Args:
        directory: An empty directory.
        kills: The number of kills.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: A checkpoint is missing or unreadable, a process did not end, or
            the final weights differ from those of uninterrupted hosts.
    """
    rng = random.Random(0)
    model_dir = os.path.join(directory, "killed")
    saved = 0
    for _ in range(kills):
        host, secs = rng.randrange(2), rng.uniform(0, _LIFE_SECS)
        scenario = Scenario(
            model_dir, _ENDLESS, host, "kill", "time", secs, pause=_PAUSE
        )
        _seconds_to_end(_launched(scenario), host)
        latest = kte.latest_checkpoint(model_dir)
        if latest is not None:
            read(latest)
        is_there = newest_step(model_dir) >= saved
        expect(is_there, f"The checkpoint of step {saved} is not lost.")
        saved = newest_step(model_dir)
    return {
        "kills of one of two hosts": kills,
        "steps of two hosts, with weights equal to the bit": _finish(
            model_dir, directory
        ),
    }


def move(directory: str, way: str) -> dict[str, object]:
    """Continues one training on different numbers of hosts.

    Args:
        directory: An empty directory.
        way: How training saves, one of `saves.SPREAD`.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: Training did not continue, or the values differ from those of
            one core.
    """
    model_dir = os.path.join(directory, "moved")
    alone = os.path.join(directory, "alone")
    for number, hosts in enumerate(_MOVES, start=1):
        wish = {"model_dir": model_dir, "steps": [4 * number], "way": way}
        ended = launch(
            *_MOVER, json.dumps(wish), processes=hosts, cores=_CORES // hosts
        )
        expect(ended.code == 0, f"{hosts} hosts go on: {ended.text}")
    steps = [4 * number for number in range(1, len(_MOVES) + 1)]
    wish = {"model_dir": alone, "steps": steps, "way": None}
    ended = launch(*_MOVER, json.dumps(wish), processes=1, cores=1)
    expect(ended.code == 0, f"One core trains: {ended.text}")
    values, expected = (
        read(kte.latest_checkpoint(each)) for each in (model_dir, alone)
    )
    expect(values.keys() == expected.keys(), "Variables are the same.")
    for name, value in values.items():
        far = np.abs(value - expected[name]).max()
        # Sums may have another order.
        expect(far < _NEAR, f"{name} is that of one core, but for {far}.")
    numbers = ", ".join(map(str, _MOVES))
    return {"numbers of hosts that continued": numbers}


def start_helpers(directory: str) -> dict[str, object]:
    """Makes hosts start child processes in each way, which import the script.

    Args:
        directory: An empty directory.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: A child joined the hosts, or the hosts did not finish.
    """
    program = ("-m", "tests.many_hosts.parent_program")
    # Each child imports the package, which takes long on a busy machine.
    ended = launch(*program, directory, sys.executable, *_WAYS, cores=1, limit_secs=400)
    expect(ended.code == 0, f"Hosts with helpers end: {ended.text}")
    for said in ended.each("parents"):
        are_alone = all(each[1:] == [1] for each in said["helpers"].values())
        expect(are_alone, f"Helpers are alone: {said['helpers']}")
    return {"children of two hosts that did not join": 2 * len(_WAYS)}


def read_slowly(directory: str) -> dict[str, object]:
    """Restarts hosts, one of which reads longer than the time limit.

    Args:
        directory: An empty directory.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: The hosts did not finish.
    """
    for host in range(2):
        model_dir = os.path.join(directory, str(host))
        scenario = Scenario(model_dir, STEPS_PER_SAVE)
        for steps in (STEPS_PER_SAVE, 2 * STEPS_PER_SAVE):
            ended = _launched(dataclasses.replace(scenario, steps=steps))
            expect(ended.code == 0, f"Slow readers must finish: {ended.text}")
            scenario = dataclasses.replace(scenario, host=host, failure="read slowly")
        waited = f"Waiting for host {host}, which reads a checkpoint"
        expect(waited in ended.log(1 - host), f"The log must say so: {ended.text}")
    return {"hosts that read longer than the time limit": 2}


def _finish(model_dir: str, directory: str) -> int:
    """Lets hosts finish, and compares them with uninterrupted ones; returns the last
    step.
    """
    steps = newest_step(model_dir) + _LAST_STEPS
    undisturbed = os.path.join(directory, "undisturbed")
    ended = _launched(Scenario(model_dir, steps, undisturbed=undisturbed))
    expect(ended.code == 0, f"The hosts must finish: {ended.text}")
    check_equal(model_dir, undisturbed)
    return steps


def _launched(scenario: Scenario) -> Ended:
    return launch("-m", "tests.many_hosts.failing_program", scenario.as_json())


def _seconds_to_end(ended: Ended, failing: int) -> float:
    """The time in which all processes ended after a failure."""
    failed = re.findall("Process ([0-9]) of 2 has ended with", ended.text)
    expect(sorted(failed) == ["0", "1"], f"Both hosts must fail: {ended.text}")
    return ended.ended_at - time_of_failure(ended.lines(failing))
