"""Trials that interrupt training between two file operations, and continue it.

At the end, each training saves a step twice, because a callback assigns values. Several
cores are needed for sharded variables.
"""

import contextlib
import itertools
import os
import shutil
from collections.abc import Collection, Iterator
from typing import Any

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import keras
import numpy as np
from keras import ops

from keras_tpu_estimator.api.hooks.session_run_hook import LoopHook
from tests.torture import saves
from tests.torture.figures import expect
from tests.torture.operations import FULL, KILL, Killed, Operations

FIRST, LAST = 2, 4
_SETTINGS: dict[str, dict[str, Any]] = {
    saves.WHOLE: {},
    saves.PARTS: {"shard_optimizer": True},
    saves.TENSORFLOW: {"checkpoint_format": "tensorflow"},
    saves.TREE: {"shard_optimizer": True, "checkpoint_format": "orbax"},
    saves.WHOLE_TREE: {"checkpoint_format": "orbax"},
}


class Halving(keras.callbacks.Callback):
    """Halves all trained variables when training has ended."""

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        for variable in self.model.trainable_variables:
            variable.assign(variable * 0.5)


class Interrupted(Exception):
    """An error that interrupts training."""


class Interrupting(LoopHook):
    """Interrupts training after it has saved its first steps."""

    acts_last = True

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_context.session.run("global_step") == FIRST:
            raise Interrupted


def cut_off(
    directory: str,
    ways: tuple[str, ...] = saves.WAYS,
    fates: tuple[str, ...] = (KILL, FULL),
    only: Collection[str] = ("replace", "remove"),
) -> dict[str, object]:
    """Interrupts trainings at file operations, and restarts them.

    Args:
        directory: An empty directory.
        ways: How the trainings save.
        fates: The kinds of interruption.
        only: The names of operations to interrupt.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: Training did not continue to the same values, or stale files
            exist.
    """
    figures: dict[str, object] = {}
    for way, fate in itertools.product(ways, fates):
        base = os.path.join(directory, "base")
        with contextlib.suppress(Interrupted):
            train(base, way, [Interrupting()])
        ends = {_ended(base, way, hooks) for hooks in ([], [Halving()])}
        expect(len(ends) == 2, "Assigning must make another checkpoint.")
        names = _cut_off(base, way, 0, fate, ends)
        tried = [at for at, n in enumerate(names, start=1) if n in only]
        for at in tried:
            _cut_off(base, way, at, fate, ends)
        shutil.rmtree(base)
        which = f"operations of a training that saves {way}, {fate}"
        figures[which] = len(tried)
    return figures


def _ended(base: str, way: str, hooks: list[Any]) -> bytes:
    """The values of uninterrupted training."""
    directory = base + "-alone"
    shutil.copytree(base, directory)
    train(directory, way, hooks)
    values = values_at(directory)
    shutil.rmtree(directory)
    return values


def _cut_off(base: str, way: str, at: int, fate: str, ends: set[bytes]) -> list[str]:
    """Interrupts and continues training; returns the operations before the
    interruption.
    """
    directory = base + "-cut"
    shutil.copytree(base, directory)
    operations = Operations(directory, at, fate)
    with contextlib.suppress(Killed, OSError), operations.counted():
        train(directory, way, [Halving()])
    what = f"{way} after {operations.done}, {fate}"
    is_moment = operations.is_met == bool(at)
    by_threads = way in (saves.TREE, saves.WHOLE_TREE)
    expect(is_moment or by_threads, f"There is such a moment: {what}")
    train(directory, way, [Halving()])
    expect(values_at(directory) in ends, f"It ends as others do: {what}")
    # Completed training does not check the directory.
    train(directory, way, [], LAST + 1)
    saves.expect_no_stale_files(directory, what)
    shutil.rmtree(directory)
    return operations.done


def values_at(directory: str, last: int = LAST) -> bytes:
    """All values of the latest checkpoint, which must have this step."""
    prefix = kte.checkpoints.latest_intact(directory)
    values = kte.checkpoints.read(prefix)
    step = int(values["global_step"])
    expect(step == last, f"It comes to step {last}, not {step}.")
    return b"".join(values[name].tobytes() for name in sorted(values))


def input_fn(params: dict[str, Any]) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    while True:
        x = rng.normal(size=(params["batch_size"], 4)).astype("float32")
        yield x, x[:, :1] ** 2


def _model_fn(
    features: Any, labels: Any, mode: str, params: dict[str, Any]
) -> kte.TPUEstimatorSpec:
    x = keras.layers.Dense(8)(features)
    x = keras.layers.Dropout(0.5)(x, training=mode == kte.ModeKeys.TRAIN)
    loss = ops.mean((keras.layers.Dense(1)(x) - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.01))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def train(directory: str, way: str, hooks: list[Any], max_steps: int = LAST) -> None:
    """Trains to a step, with a checkpoint after each loop."""
    estimator_in(directory, way).train(input_fn, max_steps=max_steps, hooks=hooks)


def estimator_in(directory: str, way: str) -> kte.TPUEstimator:
    """An estimator that saves in the given way after each loop."""
    return kte.TPUEstimator(
        _model_fn,
        config=kte.RunConfig(
            model_dir=directory,
            save_checkpoints_steps=1,
            keep_checkpoint_max=1,
            tf_random_seed=1,
            save_summary_steps=None,
            log_step_count_steps=None,
            tpu_config=kte.TPUConfig(iterations_per_loop=FIRST),
            **_SETTINGS[way],
        ),
        use_tpu=way in saves.SPREAD,
        train_batch_size=16,
        eval_batch_size=16,
    )
