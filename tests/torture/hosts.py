"""Hosts of which one fails, at each kind of moment and at random ones."""

import dataclasses
import itertools
import os
import random
import re

import keras_tpu_estimator as kte
from tests.many_hosts.failing_program import STEPS_PER_SAVE
from tests.many_hosts.failing_program import TIMEOUT_SECS
from tests.many_hosts.failing_program import Life
from tests.many_hosts.failing_program import time_of_fate
from tests.many_hosts.launching import Ended
from tests.many_hosts.launching import launch
from tests.torture.figures import expect
from tests.torture.killing import check_equal
from tests.torture.killing import newest_step
from tests.torture.killing import read

_PHASES = ("step", "save", "evaluation")
_FATES = (("kill", 0), ("kill", 1), ("raise", 0), ("raise", 1), ("hang", 1))
# Beyond the time-out, for all to come to their end.
_MARGIN_SECS = 5
# A life after the first steps, at most, and how much a loop waits.
_LIFE_SECS = 3.0
_PAUSE = 0.01
_ENDLESS = 10**9
_LAST_STEPS = 20


def fail_anywhere(directory: str) -> dict[str, object]:
    """Has each kind of failure happen during a step, a save, an evaluation.

    Args:
        directory: An empty directory.

    Returns:
        Figures by what they count.

    Raises:
        ViolationError: Some process did not end, or not in time, or went on
            with other weights when it was started again.
    """
    life = Life(os.path.join(directory, "failed"))
    starts, slowest = 0, 0.0
    for phase, (fate, host) in itertools.product(_PHASES, _FATES):
        starts += 1
        at = STEPS_PER_SAVE * starts
        met = dataclasses.replace(
            life, steps=_ENDLESS, host=host, fate=fate, phase=phase, at=at
        )
        secs = _seconds_to_end(_lived(met), host)
        slowest = max(slowest, secs)
        limit = TIMEOUT_SECS + _MARGIN_SECS
        what = f"After {fate} of host {host} in a {phase}, all end"
        expect(secs < limit, f"{what} within {limit} s, not {secs:.1f}.")
    _finish(life.model_dir, directory)
    return {
        "failures of one of two hosts": starts,
        "seconds from a failure to the end of all, at most": f"{slowest:.1f}",
        "of these after the failure is taken for one": TIMEOUT_SECS,
    }


def kill_and_restart(directory: str, kills: int) -> dict[str, object]:
    """Kills one of two hosts again and again, then lets both end.

    Args:
        directory: An empty directory.
        kills: How often.

    Returns:
        Figures by what they count.

    Raises:
        ViolationError: A checkpoint was lost or cannot be read, some process
            did not end, or the final weights are not those of hosts that were
            left alone.
    """
    rng = random.Random(0)
    model_dir = os.path.join(directory, "killed")
    saved = 0
    for _ in range(kills):
        host, secs = rng.randrange(2), rng.uniform(0, _LIFE_SECS)
        life = Life(
            model_dir, _ENDLESS, host, "kill", "time", secs, pause=_PAUSE
        )
        _seconds_to_end(_lived(life), host)
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


def _finish(model_dir: str, directory: str) -> int:
    """Lets hosts end, and others do the same undisturbed; their last step."""
    steps = newest_step(model_dir) + _LAST_STEPS
    undisturbed = os.path.join(directory, "undisturbed")
    ended = _lived(Life(model_dir, steps, undisturbed=undisturbed))
    expect(ended.code == 0, f"They come to their end: {ended.text}")
    check_equal(model_dir, undisturbed)
    return steps


def _lived(life: Life) -> Ended:
    return launch("-m", "tests.many_hosts.failing_program", life.as_json())


def _seconds_to_end(ended: Ended, victim: int) -> float:
    """How long all took to end after one had failed."""
    failed = re.findall("Process ([0-9]) of 2 has ended with", ended.text)
    expect(sorted(failed) == ["0", "1"], f"Both hosts fail: {ended.text}")
    return ended.ended_at - time_of_fate(ended.lines(victim))
