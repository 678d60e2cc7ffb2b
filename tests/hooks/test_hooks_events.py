"""Tests what `SummarySaverHook`, `StepCounterHook`, `ProfilerHook` write."""

import glob
import gzip
import json
import logging
import os

import jax
import numpy as np
import pytest
from helpers import (
    LoopOf,
    batches_of,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
)

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.hooks.hook_list import HookList
from keras_tpu_estimator.api.hooks.loop_results import LoopResults
from keras_tpu_estimator.api.hooks.summary_saver import TrainingLogHook
from keras_tpu_estimator.base.storage.growing_files import shown_at_end
from keras_tpu_estimator.summary import EventWriter
from keras_tpu_estimator.typing import Session

X, Y = regression_data()

_LOGGER = "keras_tpu_estimator"


def written(directory):
    """The scalars in a directory: pairs of step and value, for each tag."""
    from tensorboard.backend.event_processing import event_accumulator

    events = event_accumulator.EventAccumulator(str(directory)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def run(hook, steps):
    """Makes runs that end at steps, each with twice its step as the loss."""
    now = {"global_step": steps[0], "loss": 2.0 * steps[0], "b": np.ones(2)}
    hooks = HookList([hook], Session(now.__getitem__, loop=LoopOf(now)))
    hooks.begin()
    hooks.after_create_session()
    for step in steps[1:]:
        run = hooks.before_run()
        now |= {"global_step": step, "loss": 2.0 * step}
        run.after_run()
    with shown_at_end():
        hooks.end()


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({"save_steps": 1}, [3, 4, 8, 9]),
        ({"save_steps": 5}, [3, 8]),
        ({"save_steps": 100}, [3]),
        ({"save_secs": 0}, [3, 4, 8, 9]),
        ({"save_secs": 3600}, [3]),
    ],
)
@pytest.mark.parametrize("summary_op", [None, "loss", ["loss"], {"L": "loss"}])
def test_summaries_have_the_steps_of_the_hook(arguments, steps, summary_op, tmp_path):
    hook = kte.hooks.SummarySaverHook(
        **arguments, output_dir=tmp_path, summary_op=summary_op
    )
    run(hook, [2, 3, 4, 8, 9])
    tag = "L" if isinstance(summary_op, dict) else "loss"
    assert written(tmp_path) == {tag: [(step, 2.0 * step) for step in steps]}


def test_summaries_of_a_training(tmp_path):
    values = []

    class Record(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            step, bias = run_context.session.run(["global_step", "dense/bias"])
            values.append((int(step), bias[0]))

    hook = kte.hooks.SummarySaverHook(
        save_steps=8, output_dir=tmp_path / "new", summary_op="dense/bias"
    )
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(repeated(X, Y), hooks=[hook, Record()], steps=20)
    assert [step for step, _ in values[::2]] == [4, 12, 20]
    assert written(tmp_path / "new") == {"dense/bias": values[::2]}


def test_summaries_go_to_the_given_writer(tmp_path):
    writer = EventWriter(tmp_path / "given")
    hook = kte.hooks.SummarySaverHook(
        1, output_dir=tmp_path / "other", summary_writer=writer
    )
    run(hook, [0, 1])
    assert written(tmp_path / "given") == {"loss": [(1, 2.0)]}
    assert not os.path.exists(tmp_path / "other")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "Exactly one of `every_secs` and `every_steps`"),
        (
            {"save_steps": 1, "save_secs": 1},
            ValueError,
            "Exactly one of `every_secs` and `every_steps`",
        ),
        (
            {"save_steps": 1, "scaffold": 1, "summary_op": "loss"},
            ValueError,
            "one of `scaffold` and `summary_op` can .* Omit `scaffold`",
        ),
        ({"save_steps": 1}, ValueError, "Pass the directory of the event file"),
        (
            {"save_steps": 1, "summary_writer": "a directory"},
            TypeError,
            "`summary_writer` must be a .*EventWriter. .* Pass `output_dir`",
        ),
        (
            {"save_steps": 1, "summary_op": np.float32(1)},
            TypeError,
            "`summary_op` must be given by name",
        ),
    ],
)
def test_wrong_summaries(arguments, error, message):
    with pytest.raises(error, match=message):
        kte.hooks.SummarySaverHook(**arguments)


def test_summary_must_be_one_number(tmp_path):
    hook = kte.hooks.SummarySaverHook(1, output_dir=tmp_path, summary_op="b")
    with pytest.raises(ValueError, match="'b' must be one number"):
        run(hook, [0, 1])


class Clock:
    """Replaces `time.monotonic`; each call adds half a second."""

    def __init__(self):
        self.now = 10.0

    def __call__(self):
        self.now += 0.5
        return self.now


def counter(**arguments):
    """A counter with a known rate: an interval takes about a second."""
    hook = kte.hooks.StepCounterHook(**arguments)
    hook._timer._clock = Clock()
    return hook


def test_rates_of_intervals(tmp_path, caplog):
    hook = counter(every_n_steps=10, output_dir=tmp_path)
    with caplog.at_level(logging.INFO, _LOGGER):
        run(hook, [0, 5, 10, 15, 25, 29, 40])
    # The first interval begins at step 5; each takes half a second.
    rates = [(15, 20.0), (25, 20.0), (40, 30.0)]
    assert written(tmp_path) == {"global_step/sec": rates}
    # Threads of earlier tests may also log.
    told = [r.getMessage() for r in caplog.records if r.name == _LOGGER]
    assert told == [f"global_step/sec: {rate:g}" for _, rate in rates]


def test_rates_use_the_clock(tmp_path):
    hook = counter(every_n_steps=None, every_n_secs=0.9, output_dir=tmp_path)
    run(hook, [0, 1, 2, 3, 4, 5])
    assert [step for step, _ in written(tmp_path)["global_step/sec"]] == [3, 5]


class Devices:
    """Devices that take a second for each step, for which the host waits."""

    def __init__(self):
        self.started = self.made = 0
        self.now = 100.0

    def clock(self):
        return self.now

    @property
    def results(self):
        return LoopResults(self.started, (np.full(1, 0.5, "float32"),))

    def wait(self):
        self.now += self.started - self.made
        self.made = self.started


def rates_of(hook, runs):
    """The rates of a hook after runs of several steps of one second each."""
    devices, rates = Devices(), []
    hook._timer._clock = devices.clock
    hook._log = rates.append
    session = Session({}.__getitem__, wait=devices.wait, loop=devices)
    hooks = HookList([hook], session)
    hooks.begin()
    hooks.after_create_session()
    for steps in runs:
        hooked = hooks.before_run()
        hooked.start()
        devices.started += steps
        devices.now += 0.001  # The host has started the run.
        hooked.after_run()
        hooks.run_completed()
    hooks.end()
    return [rate["global_step/sec"] for rate in rates]


@pytest.mark.parametrize("runs", [[10] * 4, [10, 10, 3], [4], [5, 5, 20, 1]])
def test_rates_of_training_measure_device_time(runs):
    hook = TrainingLogHook(None, lambda results: {}, None, every_n_steps=10)
    rates = rates_of(hook, runs)
    assert rates and np.allclose(rates, 1.0, rtol=0.01)


def test_rates_measure_device_time():
    hook = kte.hooks.StepCounterHook(every_n_steps=10)
    rates = rates_of(hook, [10] * 5)
    assert len(rates) == 4 and np.allclose(rates, 1.0, rtol=0.01)


def test_subclass_may_record_other_values():
    class Custom(kte.hooks.StepCounterHook):
        records = []

        def _log_and_record(self, elapsed_steps, elapsed_time, global_step):
            self.records.append((elapsed_steps, global_step))

    run(Custom(every_n_steps=2), [0, 1, 2, 3, 8])
    assert Custom.records == [(2, 3), (5, 8)]


def test_warns_if_steps_do_not_increase(caplog):
    run(kte.hooks.StepCounterHook(), [3] * 10)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 5
    assert "has not increased: it is 3, as after the previous run" in messages[0]


@pytest.mark.parametrize("arguments", [{"every_n_steps": None}, {"every_n_secs": 5}])
def test_counter_has_one_interval(arguments):
    with pytest.raises(ValueError, match="pass every_n_steps=None as well"):
        kte.hooks.StepCounterHook(**arguments)


def profiles(directory):
    """The first steps of the profiles in a directory."""
    paths = glob.glob(f"{directory}/plugins/profile/*_step_*/*.xplane.pb")
    return sorted(int(p.split("_step_")[1].split("/")[0]) for p in paths)


@pytest.mark.parametrize(
    ("arguments", "starts"),
    [
        ({"save_steps": 4}, [4, 8, 12]),
        ({"save_steps": 5}, [4, 12]),
        ({"save_secs": 3600}, [4]),
    ],
)
def test_profiles_of_a_training(arguments, starts, tmp_path):
    hook = kte.hooks.ProfilerHook(**arguments, output_dir=tmp_path / "new")
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(repeated(X, Y), hooks=[hook], steps=14)
    assert profiles(tmp_path / "new") == starts


def test_profile_contains_the_device_loop(tmp_path):
    hook = kte.hooks.ProfilerHook(save_steps=100, output_dir=tmp_path / "new")
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(repeated(X, Y), hooks=[hook], steps=12)
    (path,) = glob.glob(f"{tmp_path}/new/plugins/profile/*/*.trace.json.gz")
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    names = {event.get("name", "") for event in events}
    assert any("train_steps" in name for name in names)


def test_profile_ends_with_the_input(tmp_path):
    hook = kte.hooks.ProfilerHook(save_steps=1, output_dir=tmp_path / "new")
    estimator = estimator_of(model_fn_of(linear), tmp_path, iterations=2)
    estimator.train(batches_of(X, Y), hooks=[hook])  # Two loops.
    jax.profiler.start_trace(str(tmp_path / "another"))
    jax.profiler.stop_trace()


def test_next_training_ends_the_profile_of_a_failed_run(tmp_path):
    hook = kte.hooks.ProfilerHook(save_steps=1, output_dir=tmp_path / "new")

    class Failing(kte.hooks.SessionRunHook):
        def before_run(self, run_context):
            if run_context.session.run("global_step") == 4:
                raise ZeroDivisionError("mine")

    estimator = estimator_of(
        model_fn_of(linear), tmp_path, config={"save_checkpoints_secs": None}
    )
    with pytest.raises(ZeroDivisionError, match="mine"):
        estimator.train(repeated(X, Y), hooks=[hook, Failing()], steps=8)
    estimator.train(repeated(X, Y), hooks=[hook], steps=8)
    assert set(profiles(tmp_path / "new")) == {4}


@pytest.mark.parametrize("arguments", [{}, {"save_steps": 1, "save_secs": 1}])
def test_profiler_has_one_interval(arguments):
    with pytest.raises(ValueError, match="Exactly one of `every_secs`"):
        kte.hooks.ProfilerHook(**arguments)
