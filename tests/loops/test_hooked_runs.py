"""When hooks hear of a run: at once, or when the devices have made it."""

import dataclasses
import json

import keras
import pytest
from helpers import estimator_of
from helpers import linear
from helpers import model_fn_of
from helpers import regression_data
from helpers import repeated

import keras_tpu_estimator as kte
from keras_tpu_estimator.device.device_loop import DeviceLoop
from keras_tpu_estimator.hooks.hook_list import HookList
from keras_tpu_estimator.hooks.nan_tensor import NanLossHook
from keras_tpu_estimator.hooks.session_run_hook import LoopHook
from keras_tpu_estimator.inputs.infeed import Infeed
from keras_tpu_estimator.loops.hooked_runs import run_hooked

X, Y = regression_data(examples=64)


@dataclasses.dataclass
class Told(LoopHook):
    """Writes down what it is told."""

    events: list

    def after_run(self, run_context, run_values):
        self.events.append("after")

    def run_is_made(self, session):
        self.events.append("made")


class AllThere(Infeed):
    """Has its items ready before it is asked for one."""

    def __init__(self, items):
        items = iter(items)
        super().__init__(lambda: next(items, None), depth=9)
        self._thread.join()


@pytest.mark.parametrize(
    ("runs_ahead", "expected"),
    [
        (False, "run 1, after, made, run 2, after, made"),
        (True, "run 1, after, run 2, made, after, made"),
    ],
)
def test_a_run_may_begin_before_the_one_before_is_told_of(runs_ahead, expected):
    events = []
    hooks = HookList([Told(events)], session=None)

    def run(item, fetches):
        events.append(f"run {item}")
        hooks.run_is_made()
        return False

    with AllThere([2]) as infeed:
        run_hooked(hooks, 1, infeed, run, bool, runs_ahead)
    assert ", ".join(events) == expected


def test_a_run_is_told_of_before_input_is_awaited():
    events = []
    hooks = HookList([Told(events)], session=None)

    class Late(Infeed):
        def take_ready(self):
            return None

        def __next__(self):
            events.append("awaited")
            raise StopIteration

    with Late(lambda: None) as infeed:
        run_hooked(
            hooks, 1, infeed, lambda *_: events.append("run"), bool, True
        )
    assert events == ["run", "after", "made", "awaited"]


@pytest.mark.parametrize(
    ("use_tpu", "hooks", "runs_ahead"),
    [
        (False, [], True),
        (False, [kte.hooks.StopAtStepHook(last_step=12)], True),
        (False, [kte.hooks.SessionRunHook()], False),
        (False, [keras.callbacks.Callback()], False),
        (True, [], False),
    ],
    ids=["alone", "stop", "hook", "callback", "simulated cores"],
)
def test_training_runs_ahead_unless_somebody_looks(
    monkeypatch, tmp_path, use_tpu, hooks, runs_ahead
):
    events = []
    run, is_made = DeviceLoop.run, NanLossHook.run_is_made
    monkeypatch.setattr(
        DeviceLoop, "run", lambda *a: events.append("run") or run(*a)
    )
    monkeypatch.setattr(
        NanLossHook,
        "run_is_made",
        lambda *a: events.append("made") or is_made(*a),
    )
    monkeypatch.setattr(Infeed, "take_ready", lambda self: next(self, None))
    estimator = estimator_of(model_fn_of(linear), tmp_path, use_tpu)
    estimator.train(repeated(X, Y), max_steps=12, hooks=hooks)
    ahead = ["run", "run", "made", "run", "made", "made"]
    assert events == (ahead if runs_ahead else ["run", "made"] * 3)


def test_reports_of_runs_ahead_are_those_of_their_own_run(
    monkeypatch, tmp_path
):
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
