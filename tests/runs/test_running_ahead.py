"""Tests when hooks are called after a run: at once, or when devices finish it."""

import dataclasses
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

    def run_is_made(self, session):
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
        hooks.run_is_made()
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


class Allows(kte.hooks.SessionRunHook):
    allows_run_ahead = True


class Stops(kte.hooks.StopAtStepHook):
    def begin(self):
        """Is not called for runs."""


class Looks(kte.hooks.StopAtStepHook):
    def after_run(self, run_context, run_values):
        """Is not covered by `StopAtStepHook.allows_run_ahead`."""


class InheritsLooks(Looks):
    """Inherits a method that reads values."""


class LooksAndAllows(Looks):
    allows_run_ahead = True

    def before_run(self, run_context):
        """Is covered by this class's `allows_run_ahead`."""


class Mixin:
    def before_run(self, run_context):
        """Is not covered by `StopAtStepHook.allows_run_ahead` either."""


class Mixed(Mixin, kte.hooks.StopAtStepHook):
    """Reads values in an inherited method only."""


class Made(LoopHook):
    def run_is_made(self, session):
        """Overrides a method without allowing late calls."""


class OfEpochs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.seen = [*getattr(self, "seen", []), (epoch, logs)]


class OfBatches(OfEpochs):
    def on_train_batch_end(self, batch, logs=None):
        """Is called after each run."""


class Late(OfBatches):
    allows_run_ahead = True


class Subclassed(kte.hooks.CallbackHook):
    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)


def with_attribute(hook):
    hook.allows_run_ahead = True
    return hook


def looking():
    return keras.callbacks.LambdaCallback(on_train_batch_begin=lambda *_: None)


HEEDLESS = {
    "nobody": lambda: [],
    "a hook that says so": lambda: [Allows()],
    "an object that says so": lambda: [with_attribute(kte.hooks.SessionRunHook())],
    "a hook of the package": lambda: [kte.hooks.StopAtStepHook(last_step=12)],
    "a subclass": lambda: [Stops(last_step=12)],
    "a subclass that says so": lambda: [LooksAndAllows(last_step=12)],
    "a callback": lambda: [keras.callbacks.Callback()],
    "a callback of epochs": lambda: [OfEpochs()],
    "a callback that says so": lambda: [Late()],
    "callbacks as a hook": lambda: [
        kte.hooks.CallbackHook([OfEpochs(), Late()], steps_per_epoch=8)
    ],
}
HEEDFUL = {
    "a hook": lambda: [kte.hooks.SessionRunHook()],
    "one of several": lambda: [Allows(), kte.hooks.SessionRunHook()],
    "a hook of loops": lambda: [Made()],
    "a subclass that looks": lambda: [Looks(last_step=12)],
    "a subclass of that": lambda: [InheritsLooks(last_step=12)],
    "a mixed one": lambda: [Mixed(last_step=12)],
    "a callback of batches": lambda: [OfBatches()],
    "a function of batches": lambda: [looking()],
    "callbacks as a hook that look": lambda: [
        kte.hooks.CallbackHook([Late(), OfBatches()])
    ],
    "callbacks as another hook": lambda: [Subclassed(Late())],
}


@pytest.mark.rows(11)
@pytest.mark.parametrize(
    ("use_tpu", "hooks", "runs_ahead"),
    [
        *((False, hooks, True) for hooks in HEEDLESS.values()),
        *((False, hooks, False) for hooks in HEEDFUL.values()),
        (True, HEEDLESS["nobody"], False),
    ],
    ids=[*HEEDLESS, *HEEDFUL, "simulated cores"],
)
def test_training_runs_ahead_unless_a_hook_reads_values(
    monkeypatch, tmp_path, use_tpu, hooks, runs_ahead
):
    events = []
    run, is_made = DeviceLoop.run, NanLossHook.run_is_made
    monkeypatch.setattr(DeviceLoop, "run", lambda *a: events.append("run") or run(*a))
    monkeypatch.setattr(
        NanLossHook,
        "run_is_made",
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
    assert [step for step, _ in ahead] == [4, 8, 12]
    assert ahead == reported(tmp_path / "seen", [kte.hooks.SessionRunHook()])


def test_hooks_of_the_package_allow_running_ahead():
    exported = [getattr(kte.hooks, name) for name in kte.hooks.__all__]
    said = {
        each.__name__: each.allows_run_ahead
        for each in exported
        if isinstance(each, type) and issubclass(each, kte.hooks.SessionRunHook)
    }
    refusing = {name for name, allows in said.items() if not allows}
    # Users decide for the first; the other cannot be instantiated.
    assert refusing == {"SessionRunHook", "FeedFnHook"}


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
    assert ahead == told(tmp_path / "seen", kte.hooks.SessionRunHook())
