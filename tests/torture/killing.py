"""Trials that kill training at random moments and resume it."""

import contextlib
import dataclasses
import io
import os
import random
import signal
import statistics
import subprocess
import threading
import time

import numpy as np

import keras_tpu_estimator as kte
from tests.torture.figures import expect
from tests.torture.saves import WHOLE, expect_no_stale_files, stale_files
from tests.torture.victim import STEPS_PER_SAVE, Wishes

# The maximum lifetime after the first step, and the pause of a loop.
_LIFE_SECS = 1.0
_PAUSE = 0.01
# More steps than any lifetime allows, and the steps after all kills.
_ENDLESS = 10**9
_LAST_STEPS = 20
# 64 MB including Adam's slots.
_WIDE = 87_000


def kill_and_resume(directory: str, kills: int, way: str = WHOLE) -> dict[str, object]:
    """Kills training repeatedly, then lets it finish.

    Args:
        directory: An empty directory.
        kills: The number of kills.
        way: How training saves. Defaults to unsharded files.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: A checkpoint is missing or unreadable, or the final weights
            differ from those of uninterrupted training.
    """
    rng = random.Random(0)
    model_dir = os.path.join(directory, "killed")
    saved = partial = 0
    for _ in range(kills):
        victim = Wishes(model_dir, _ENDLESS, _PAUSE, way=way)
        saved = max(saved, _killed(victim, rng.uniform(0, _LIFE_SECS)))
        partial += any("partial" in name for name in os.listdir(model_dir))
        _check_checkpoints(model_dir, saved)
    steps = newest_step(model_dir) + _LAST_STEPS
    Wishes(model_dir, steps, way=way).run()
    expect_no_stale_files(model_dir, f"{kills} kills of {way}")
    undisturbed = os.path.join(directory, "undisturbed")
    Wishes(undisturbed, steps, way=way).run()
    check_equal(model_dir, undisturbed)
    return {
        "kills": kills,
        "of these, during the write of a file": partial,
        "steps at the last kill": saved,
        "steps in total, with bit-equal weights": steps,
    }


def kill_in_saves(directory: str, kills: int, way: str) -> dict[str, object]:
    """Kills training while it saves about 64 MB, then lets it finish.

    Args:
        directory: An empty directory.
        kills: The number of kills.
        way: How training saves.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: See `kill_and_resume`.
    """
    rng = random.Random(0)
    model_dir = os.path.join(directory, "killed")
    large = Wishes(model_dir, _ENDLESS, way=way, width=_WIDE, is_watched=True)
    secs = _seconds_of_a_save(os.path.join(directory, "timed"), way)
    saved = amid = 0
    for _ in range(kills):
        which, after = rng.randrange(1, 4), rng.uniform(0, 1.2 * secs)
        saved = max(saved, _killed(large, after, f"saving {which}"))
        amid += bool(stale_files(model_dir))
        _check_checkpoints(model_dir, saved)
    steps = newest_step(model_dir) + _LAST_STEPS
    dataclasses.replace(large, steps=steps).run()
    expect_no_stale_files(model_dir, f"{kills} kills of {way}")
    undisturbed = os.path.join(directory, "undisturbed")
    dataclasses.replace(large, model_dir=undisturbed, steps=steps).run()
    check_equal(model_dir, undisturbed)
    return {
        "kills in saves": kills,
        "of these, with an incomplete save": amid,
        "steps in total, with bit-equal weights": steps,
    }


def _seconds_of_a_save(directory: str, way: str) -> float:
    """The median time of a save while training waits."""
    wishes = Wishes(directory, 24, way=way, width=_WIDE)
    times = []
    with wishes.start() as process:
        for line in process.stdout:
            if line.startswith("saving"):
                begun = time.monotonic()
            elif line.startswith("saved"):
                times.append(time.monotonic() - begun)
    return statistics.median(times)


def _killed(wishes: Wishes, after_secs: float, moment: str = "training") -> int:
    """Kills a victim after a report; returns the last saved step.

    Args:
        moment: "training", or "saving" and the number of the save.
    """
    saved = begun = 0
    what, _, number = moment.partition(" ")
    with wishes.start() as process:
        for line in process.stdout:
            told, _, step = line.partition(" ")
            if told == "saving":
                begun += 1
                # The previous checkpoint then exists.
                saved = max(saved, int(step) - STEPS_PER_SAVE)
            elif told == "saved":
                saved = int(step)
            if told.strip() == what and number in ("", str(begun)):
                threading.Timer(after_secs, process.kill).start()
    expect(process.returncode == -9, "The process must run until it is killed.")
    return saved


def _check_checkpoints(model_dir: str, saved: int) -> None:
    """Reads all checkpoints; the newest must be at least the last saved one."""
    for name in os.listdir(model_dir):
        prefix, end = os.path.splitext(name)
        if end in (".h5", ".index", ".orbax") and "partial" not in name:
            read(os.path.join(model_dir, prefix))
    is_there = newest_step(model_dir) >= saved
    expect(is_there, f"The checkpoint of step {saved} is not lost.")


def newest_step(model_dir: str) -> int:
    """The step of the newest checkpoint, or 0 without checkpoints."""
    latest = kte.latest_checkpoint(model_dir)
    return int(kte.load_variable(latest, "global_step")) if latest else 0


def check_equal(one: str, other: str, tolerance: float = 0) -> None:
    """Compares the newest checkpoints of two directories.

    Args:
        one: A directory.
        other: The other directory.
        tolerance: The largest difference. Defaults to 0.
    """
    values = [read(kte.latest_checkpoint(each)) for each in (one, other)]
    expect(values[0].keys() == values[1].keys(), "Variables are the same.")
    for name, value in values[0].items():
        other_value = values[1][name]
        is_equal = value.shape == other_value.shape and np.allclose(
            value, other_value, rtol=0, atol=tolerance
        )
        expect(is_equal, f"{name} is equal within {tolerance}.")


def read(prefix: str) -> dict[str, np.ndarray]:
    """All variables of a checkpoint."""
    reader = kte.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    return {name: reader.get_tensor(name) for name in shapes}


def rivals(directory: str) -> dict[str, object]:
    """Starts a second training in a directory in use.

    Raises:
        ViolationError: It was not refused, or the first training changed.
    """
    with Wishes(directory, 20, stops=True).start() as first:
        os.waitid(os.P_PID, first.pid, os.WSTOPPED)
        second = Wishes(directory, 20).start(stderr=subprocess.PIPE)
        _, told = second.communicate()
        first.send_signal(signal.SIGCONT)
        first.communicate()
    expect(second.returncode == 1, "The second training must be refused.")
    expect("Another training" in told, f"It is told why: {told}")
    expect(first.returncode == 0, "The first training must finish.")
    return {"second trainings refused": 1}


def clock_jumps(directory: str) -> dict[str, object]:
    """Trains while the clock runs backwards.

    Raises:
        ViolationError: Saving stopped, or another checkpoint is the newest.
    """
    now = time.time
    started = now()
    jump = iter(range(0, 10**9, 3600))
    time.time = lambda: started - next(jump)
    try:
        _train_in_process(directory)
    finally:
        time.time = now
    latest = kte.latest_checkpoint(directory)
    step = int(kte.load_variable(latest, "global_step"))
    expect(step == 40, f"The newest checkpoint must be that of step 40, not {step}.")
    return {"hours by which the clock went back": next(jump) // 3600}


def _train_in_process(directory: str) -> None:
    from tests.torture import victim

    with contextlib.redirect_stdout(io.StringIO()):
        victim.main(Wishes(directory, 40))
