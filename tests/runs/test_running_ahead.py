"""Tests when hooks are called after a run: at once, or when devices finish it."""

import dataclasses
import itertools
import json

import keras
import pytest
from helpers import estimator_of, linear, model_fn_of, regression_data, repeated

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.hooks.hook_list import HookList
from keras_tpu_estimator.api.hooks.session_run_hook import LoopHook
from keras_tpu_estimator.api.hooks.stopping import NanLossHook
from keras_tpu_estimator.engine.device.device_loop import DeviceLoop
from keras_tpu_estimator.engine.inputs.pipeline import Infeed
from keras_tpu_estimator.runs.staging import next_loop

X, Y = regression_data(examples=64)


@dataclasses.dataclass
class Recorder(LoopHook):
    """Records its calls."""

    events: list

    def after_run(self, run_context, run_values):
        self.events.append("after")

    def run_completed(self, session):
        self.events.append("made")


class ReadyInfeed(Infeed):
    """An infeed whose items are all ready at the start."""

    def __init__(self, items):
        items = iter(items)
        super().__init__(lambda: next(items, None), depth=9)
        self._thread.join()


def run_loops(events, infeed, runs_ahead):
    """Calls hooks as `train` does, without running anything."""
    hooks = HookList([Recorder(events)], session=None)
    item = 1
    while item is not None:
        hooked = hooks.before_run()
        events.append(f"run {item}")
        hooks.run_completed()
        hooked.after_run()
        item = next_loop(infeed, hooks, runs_ahead)


@pytest.mark.parametrize(
    ("runs_ahead", "expected"),
    [
        (False, "run 1, after, made, run 2, after, made"),
        (True, "run 1, after, run 2, made, after, made"),
    ],
)
def test_run_may_begin_before_the_previous_one_is_reported(runs_ahead, expected):
    events = []
    with ReadyInfeed([2]) as infeed:
        run_loops(events, infeed, runs_ahead)
    assert ", ".join(events) == expected


def test_finished_run_is_reported_before_waiting_for_input():
    events = []

    class Late(Infeed):
        def take_ready(self):
            return None

        def __next__(self):
            events.append("awaited")
            raise StopIteration

    with Late(lambda: None) as infeed:
        run_loops(events, infeed, runs_ahead=True)
    assert events == ["run 1", "after", "made", "awaited"]


class Looks(kte.hooks.SessionRunHook):
    def after_run(self, run_context, run_values):
        """Acts on every run."""


class Names(Looks):
    def due_steps(self, start):
        """Describes the inherited method."""
        return itertools.count(start + 3)


class Stops(kte.hooks.StopAtStepHook):
    def begin(self):
        """Is not called for runs."""


class LooksAndStops(kte.hooks.StopAtStepHook):
    def after_run(self, run_context, run_values):
        """Is not described by `StopAtStepHook.due_steps`."""


class InheritsLooks(LooksAndStops):
    """Inherits a method that acts on every run."""


class LooksAndNames(LooksAndStops):
    def due_steps(self, start):
        """Describes the method below."""
        return (12,)

    def before_run(self, run_context):
        """Is described by this class's `due_steps`."""


class Mixin:
    def before_run(self, run_context):
        """Is not described by `StopAtStepHook.due_steps` either."""


class Mixed(Mixin, kte.hooks.StopAtStepHook):
    """Acts on every run in an inherited method only."""


class OfEpochs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.seen = [*getattr(self, "seen", []), (epoch, logs)]


class OfBatches(OfEpochs):
    def on_train_batch_end(self, batch, logs=None):
        """Is called after each run."""


class Subclassed(kte.hooks.CallbackHook):
    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)


def with_steps(hook):
    hook.due_steps = lambda start: ()
    return hook


def looking():
    return keras.callbacks.LambdaCallback(on_train_batch_begin=lambda *_: None)


AHEAD = {
    "no hook": lambda: [],
    "a hook without methods of runs": lambda: [kte.hooks.SessionRunHook()],
    "a hook that names its steps": lambda: [Names()],
    "an object that names its steps": lambda: [with_steps(Looks())],
    "a hook of the package": lambda: [kte.hooks.StopAtStepHook(last_step=12)],
    "a subclass": lambda: [Stops(last_step=12)],
    "a subclass that names its steps": lambda: [LooksAndNames(last_step=12)],
    "a callback": lambda: [keras.callbacks.Callback()],
    "a callback of epochs": lambda: [OfEpochs()],
    "callbacks as a hook": lambda: [
        kte.hooks.CallbackHook([OfEpochs()], steps_per_epoch=8)
    ],
}
ONE_BY_ONE = {
    "a hook": lambda: [Looks()],
    "one of several": lambda: [Names(), Looks()],
    "a subclass that looks": lambda: [LooksAndStops(last_step=12)],
    "a subclass of that": lambda: [InheritsLooks(last_step=12)],
    "a mixed one": lambda: [Mixed(last_step=12)],
    "a callback of batches": lambda: [OfBatches()],
    "a function of batches": lambda: [looking()],
    "callbacks as a hook that look": lambda: [
        kte.hooks.CallbackHook([OfEpochs(), OfBatches()])
    ],
    "callbacks as another hook": lambda: [Subclassed(OfEpochs())],
}


@pytest.mark.rows(11)
@pytest.mark.parametrize(
    ("use_tpu", "hooks", "runs_ahead"),
    [
        *((False, hooks, True) for hooks in AHEAD.values()),
        *((False, hooks, False) for hooks in ONE_BY_ONE.values()),
        (True, AHEAD["no hook"], False),
    ],
    ids=[*AHEAD, *ONE_BY_ONE, "simulated cores"],
)
def test_training_runs_ahead_unless_a_hook_acts_on_every_run(
    monkeypatch, tmp_path, use_tpu, hooks, runs_ahead
):
    events = []
    run, is_made = DeviceLoop.run, NanLossHook.run_completed
    monkeypatch.setattr(DeviceLoop, "run", lambda *a: events.append("run") or run(*a))
    monkeypatch.setattr(
        NanLossHook,
        "run_completed",
        lambda *a: events.append("made") or is_made(*a),
    )
    monkeypatch.setattr(Infeed, "take_ready", lambda self: next(self, None))
    estimator = estimator_of(model_fn_of(linear), tmp_path, use_tpu)
    estimator.train(repeated(X, Y), max_steps=12, hooks=hooks())
    ahead = ["run", "run", "made", "run", "made", "made"]
    assert events == (ahead if runs_ahead else ["run", "made"] * 3)


def test_reports_belong_to_their_own_run(monkeypatch, tmp_path):
    monkeypatch.setattr(Infeed, "take_ready", lambda self: next(self, None))

    def reported(directory, hooks):
        estimator = estimator_of(
            model_fn_of(linear),
            directory,
            save_summary_steps=4,
            log_step_count_steps=4,
        )
        estimator.train(repeated(X, Y), max_steps=12, hooks=hooks)
        lines = (directory / "metrics.jsonl").read_text().splitlines()
        return [(line["step"], line["loss"]) for line in map(json.loads, lines)]

    ahead = reported(tmp_path / "ahead", [])
    # The last line of a call repeats the loss, with the times of the run.
    assert [step for step, _ in ahead] == [4, 8, 12, 12]
    assert ahead == reported(tmp_path / "seen", [Looks()])


def test_hooks_of_the_package_allow_running_ahead(tmp_path):
    directory = str(tmp_path)
    hooks = [
        kte.hooks.CallbackHook(()),
        kte.hooks.CheckpointSaverHook(directory, save_steps=3),
        kte.hooks.FinalOpsHook("loss"),
        kte.hooks.GlobalStepWaiterHook(0),
        kte.experimental.InMemoryEvaluatorHook(None, repeated(X, Y)),
        kte.hooks.LoggingTensorHook("loss", 3),
        kte.hooks.NanTensorHook(),
        kte.hooks.ProfilerHook(3, output_dir=directory),
        kte.hooks.StepCounterHook(3),
        kte.hooks.StopAtStepHook(3),
        kte.hooks.SummarySaverHook(3, output_dir=directory),
    ]
    exported = [getattr(kte.hooks, name) for name in kte.hooks.__all__]
    kinds = {kind for kind in exported if isinstance(kind, type)}
    kinds = {kind for kind in kinds if issubclass(kind, kte.hooks.SessionRunHook)}
    # Users override the first; the other cannot be instantiated.
    kinds -= {kte.hooks.SessionRunHook, kte.hooks.FeedFnHook}
    assert {type(hook) for hook in hooks} == kinds
    assert HookList(hooks, None).allows_run_ahead


def test_epochs_are_equal_when_training_runs_ahead(monkeypatch, tmp_path):
    monkeypatch.setattr(Infeed, "take_ready", lambda self: next(self, None))

    def told(directory, *hooks):
        callback = OfEpochs()
        hook = kte.hooks.CallbackHook(callback, steps_per_epoch=8)
        estimator = estimator_of(model_fn_of(linear), directory)
        estimator.train(repeated(X, Y), max_steps=20, hooks=[hook, *hooks])
        return callback.seen

    ahead = told(tmp_path / "ahead")
    assert [epoch for epoch, _ in ahead] == [0, 1, 2]
    assert ahead == told(tmp_path / "seen", Looks())
