"""Tests that a hook that is used in several train calls restarts in each.

A `model_fn` is traced once, so its spec's hooks are used in several calls. In the
original it ran, and made new hooks, in each call.
"""

import contextlib
import logging
import os
import re
import shutil

import keras
import pytest
from helpers import (
    batches_of,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
)

import keras_tpu_estimator as kte

X, Y = regression_data(examples=160)
LOOP, STEPS = 2, 10


class Losses(keras.callbacks.Callback):
    """Stops after two epochs."""

    def on_train_begin(self, logs=None):
        self.epochs = []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(epoch)
        self.model.stop_training = len(self.epochs) == 2


# Functions of the estimator and of a directory to write to.
HOOKS = {
    "SessionRunHook": lambda estimator, own: kte.hooks.SessionRunHook(),
    "CallbackHook": lambda estimator, own: kte.hooks.CallbackHook(Losses()),
    "CheckpointSaverHook": lambda estimator, own: kte.hooks.CheckpointSaverHook(
        own, save_steps=4
    ),
    "FinalOpsHook": lambda estimator, own: kte.hooks.FinalOpsHook(
        ["global_step", "loss"]
    ),
    "GlobalStepWaiterHook": lambda estimator, own: kte.hooks.GlobalStepWaiterHook(
        wait_until_step=5
    ),
    "InMemoryEvaluatorHook": lambda estimator, own: kte.hooks.InMemoryEvaluatorHook(
        estimator,
        batches_of(X, Y),
        name=os.path.basename(own),
        every_n_iter=2,
    ),
    "LoggingTensorHook": lambda estimator, own: kte.hooks.LoggingTensorHook(
        ["global_step"], every_n_iter=3, at_end=True
    ),
    "LoggingTensorHook at the end": lambda estimator, own: kte.hooks.LoggingTensorHook(
        ["global_step"], at_end=True
    ),
    "LoggingTensorHook by time": lambda estimator, own: kte.hooks.LoggingTensorHook(
        ["global_step"], every_n_secs=3600
    ),
    "NanTensorHook": lambda estimator, own: kte.hooks.NanTensorHook(),
    "ProfilerHook": lambda estimator, own: kte.hooks.ProfilerHook(
        save_steps=4, output_dir=own
    ),
    "StepCounterHook": lambda estimator, own: kte.hooks.StepCounterHook(
        every_n_steps=4, output_dir=own
    ),
    "StopAtStepHook, last": lambda estimator, own: kte.hooks.StopAtStepHook(
        last_step=6
    ),
    "StopAtStepHook": lambda estimator, own: kte.hooks.StopAtStepHook(num_steps=6),
    "SummarySaverHook": lambda estimator, own: kte.hooks.SummarySaverHook(
        save_steps=4, output_dir=own
    ),
    "SummarySaverHook by time": lambda estimator, own: kte.hooks.SummarySaverHook(
        save_secs=3600, output_dir=own
    ),
    "make_early_stopping_hook": lambda estimator, own: (
        kte.experimental.make_early_stopping_hook(
            estimator, lambda: True, run_every_secs=None, run_every_steps=4
        )
    ),
    "make_stop_at_checkpoint_step_hook": lambda estimator, own: (
        kte.experimental.make_stop_at_checkpoint_step_hook(estimator, 6)
    ),
}


def test_table_has_every_hook():
    exported = {
        name
        for name in kte.hooks.__all__
        if name.startswith("make_")
        or isinstance(getattr(kte.hooks, name), type)
        and issubclass(getattr(kte.hooks, name), kte.hooks.SessionRunHook)
    }
    assert exported - {"FeedFnHook"} <= set(HOOKS)


class Watch(kte.hooks.SessionRunHook):
    """Records the last step, and may raise an error after the second run."""

    def __init__(self, is_failing=False):
        self.is_failing = is_failing
        self.runs = self.step = 0

    def after_run(self, run_context, run_values):
        self.runs += 1
        self.step = int(run_context.session.run("global_step"))
        if self.is_failing and self.runs == 2:
            raise KeyError("mine")


@pytest.fixture(scope="module")
def estimator(tmp_path_factory):
    """An estimator that saves nothing, so that training starts from step 0."""
    return estimator_of(
        model_fn_of(linear),
        tmp_path_factory.mktemp("model"),
        iterations=LOOP,
        config={"save_checkpoints_secs": None},
    )


def written(*folders):
    """The steps of events, profiles and checkpoints in folders."""
    from tensorboard.backend.event_processing import event_file_loader

    files = [
        os.path.join(directory, name)
        for folder in folders
        for directory, _, names in os.walk(folder)
        for name in names
    ]
    events = [
        event.step
        for file in files
        if "tfevents" in file
        for event in event_file_loader.EventFileLoader(file).Load()
        if event.summary.value
    ]
    others = [r"_step_(\d+)/.*\.xplane\.pb$", r"ckpt-(\d+)\.h5$"]
    found = [[m for f in files if (m := re.search(o, f))] for o in others]
    return [events, *([int(m[1]) for m in sorted(ms, key=str)] for ms in found)]


def logged(records):
    """The log lines of hooks, without times and rates."""
    hooks = os.path.join("keras_tpu_estimator", "hooks", "")
    return [
        re.sub(r"\d+\.\d+|/sec: .*", "", record.getMessage())
        for record in records
        if hooks in record.pathname
    ]


@pytest.mark.rows(7)
@pytest.mark.parametrize("name", HOOKS)
def test_hook_restarts_in_each_training(name, estimator, tmp_path, caplog):
    def seen(is_new_each_time):
        own = str(tmp_path / f"{name}_{is_new_each_time}")
        results = []
        for is_failing in (False, True, False):
            if is_new_each_time or not results:
                hook = HOOKS[name](estimator, own)
            watch = Watch(is_failing)
            caplog.clear()
            with contextlib.suppress(KeyError):
                estimator.train(repeated(X, Y), hooks=[hook, watch], steps=STEPS)
            results.append(
                (
                    watch.step,
                    str(getattr(hook, "final_ops_values", None)),
                    written(own, estimator.eval_dir(os.path.basename(own))),
                    logged(caplog.records),
                )
            )
            shutil.rmtree(own, ignore_errors=True)
        return results

    with caplog.at_level(logging.INFO, "keras_tpu_estimator"):
        assert seen(False) == seen(True)


def test_hooks_of_a_spec_restart_in_each_training(tmp_path, caplog):
    own = str(tmp_path / "own")
    made = []
    base = model_fn_of(linear)

    def model_fn(features, labels, mode, params):
        spec = base(features, labels, mode, params)
        made.append(kte.hooks.StopAtStepHook(num_steps=6))
        made.append(kte.hooks.SummarySaverHook(save_steps=4, output_dir=own))
        return spec._replace(training_hooks=made)

    estimator = estimator_of(model_fn, tmp_path / "run", iterations=LOOP)
    for last in (6, 12, 18):
        estimator.train(repeated(X, Y), steps=STEPS)
        assert estimator.get_variable_value("global_step") == last
    assert len(made) == 2
    assert written(own)[0] == [2, 6, 8, 12, 14, 18]


def test_second_saver_drops_listeners_of_an_earlier_call(tmp_path):
    class Listener(kte.hooks.CheckpointSaverListener):
        def __init__(self):
            self.steps = []

        def after_save(self, session, global_step_value):
            self.steps.append(global_step_value)

    first, second = Listener(), Listener()
    own, copies = (
        kte.hooks.CheckpointSaverHook(tmp_path / name, save_steps=100)
        for name in ("run", "copies")
    )
    estimator = estimator_of(model_fn_of(linear), tmp_path / "run")
    for hooks, listener in [([own], first), ([copies, own], second)]:
        estimator.train(
            repeated(X, Y), hooks=hooks, steps=4, saving_listeners=[listener]
        )
    assert (first.steps, second.steps) == ([0, 4], [4, 8])
