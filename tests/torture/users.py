"""Trials of users' actions during training: links, threads, and edits."""

import concurrent.futures
import contextlib
import os
import pathlib
import random
import shutil
import threading
from typing import Any

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import keras
import numpy as np

from keras_tpu_estimator.files.directory import save_files
from tests.torture import saves, trainings
from tests.torture.figures import expect


def link(directory: str, saves_of_each: int = 8, seed: int = 0) -> dict:
    """Moves files of checkpoints to another folder, and leaves links.

    Args:
        directory: An empty directory.
        saves_of_each: The number of saves of each format.
        seed: The seed that chooses the files.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: A moved file has changed or is missing, or stale files exist.
    """
    rng = random.Random(seed)
    moved: dict[pathlib.Path, bytes] = {}
    for way in saves.ALL:
        run = pathlib.Path(directory, f"run {way}")
        disk = pathlib.Path(directory, f"disk {way}")
        disk.mkdir()
        for step in range(1, saves_of_each + 1):
            saves.save(str(run), step, step, way)
            for path in sorted(run.glob(f"model.ckpt-{step}.*")):
                if rng.random() < 0.5:
                    target = disk / f"{path.name} {step}"
                    shutil.move(path, target)
                    path.symlink_to(target)
        save_files.sweep(str(run))
        left = saves.stale_files(str(run))
        expect(not left, f"{left} belongs to no checkpoint: links, {way}")
        count = sum(1 for path in disk.iterdir())
        # Retention has removed a link, and its target remains.
        names = {path.name for path in disk.iterdir()}
        links = {
            os.path.basename(os.readlink(path))
            for path in run.iterdir()
            if path.is_symlink()
        }
        expect(links < names, f"Targets of removed links must remain: {way}")
        for path in disk.rglob("*"):
            if path.is_file():
                moved[path] = path.read_bytes()
                expect(bool(moved[path]) or ".unlisted." in path.name, path)
        expect(count > 0, f"Files were moved: {way}")
    return {"files of checkpoints behind links": len(moved)}


class _Zeroing(keras.callbacks.Callback):
    """Assigns zeros in evaluations, which must not affect training."""

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        variables = self.model.trainable_variables
        for variable in variables:
            variable.assign(variable * 0)
        threading.Event().wait(0.01)
        for variable in variables:
            expect(not np.any(variable), "An evaluation must see its own values.")


class _Looking(keras.callbacks.Callback):
    """Reads the weights of training after each loop."""

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        first = self.model.get_weights()
        threading.Event().wait(0.01)
        for before, after in zip(first, self.model.get_weights(), strict=True):
            same = np.array_equal(before, after)
            expect(same, "A training must see its own values.")


def look_on_threads(directory: str, steps: int = 40) -> dict[str, object]:
    """Evaluates with callbacks on another thread during training.

    Args:
        directory: An empty directory.
        steps: The number of training steps.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: A callback saw or changed values of another call.
    """
    directories = [os.path.join(directory, n) for n in ("alone", "watched")]
    alone, watched = (trainings.estimator_in(each, saves.WHOLE) for each in directories)
    for estimator in (alone, watched):
        estimator.train(trainings.input_fn, max_steps=2)
    alone.train(trainings.input_fn, max_steps=steps)
    is_over = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        counted = pool.submit(_evaluations_until, is_over, watched)
        try:
            watched.train(trainings.input_fn, max_steps=steps, hooks=[_Looking()])
        finally:
            is_over.set()
    ends = {trainings.values_at(each, steps) for each in directories}
    expect(len(ends) == 1, "Evaluations must not change a training.")
    return {"evaluations with callbacks during a training": counted.result()}


def _evaluations_until(is_over: threading.Event, estimator: kte.TPUEstimator) -> int:
    """Evaluates until training has ended; returns the number of evaluations."""
    count = 0
    while not (count and is_over.is_set()):
        count += 1
        estimator.evaluate(trainings.input_fn, steps=2, hooks=[_Zeroing()])
    return count


class _Editing(keras.callbacks.Callback):
    """Halves all trained variables after each loop, before the save."""

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        for variable in self.model.trainable_variables:
            variable.assign(variable * 0.5)


def edit_at_saves(
    directory: str, ways: tuple[str, ...] = saves.ALL
) -> dict[str, object]:
    """Interrupts trainings right after a save whose step a callback has edited.

    Args:
        directory: An empty directory.
        ways: How the trainings save.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: The continued training ends with other values.
    """
    for way in ways:
        whole, cut = (
            os.path.join(directory, f"{name} {way}") for name in ("whole", "cut")
        )
        trainings.train(whole, way, [_Editing()])
        with contextlib.suppress(trainings.Interrupted):
            trainings.train(cut, way, [_Editing(), trainings.Interrupting()])
        step = kte.checkpoints.step_of(cut)
        expect(step == trainings.FIRST, f"It was cut at {step}: {way}")
        trainings.train(cut, way, [_Editing()])
        same = trainings.values_at(whole) == trainings.values_at(cut)
        expect(same, f"A save must contain the assigned values: {way}")
    return {"trainings interrupted after an edited save": len(ways)}
