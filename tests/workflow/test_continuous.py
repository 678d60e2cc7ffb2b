"""Tests evaluation in a separate process while another one trains."""

import json
import os
import subprocess
import sys

import pytest
from training_helpers import HELD_OUT, TRAIN, Recorder, linear_estimator

import keras_tpu_estimator as kte
from keras_tpu_estimator.files.directory import state_file
from keras_tpu_estimator.workflow.continuous import ContinuousEvaluator
from keras_tpu_estimator.workflow.evaluations import Evaluations


class World:
    """A clock, and the actions of the other process while the evaluator sleeps.

    Args:
        events: Functions by the second at which they are called.
    """

    def __init__(self, events):
        self.now = 0.0
        self._events = dict(events)

    def clock(self):
        """The seconds since the start."""
        return self.now

    def sleep(self, seconds):
        """Advances the time."""
        assert self._events, "The evaluator waits in vain."
        self.now += seconds
        event = self._events.pop(self.now, None)
        if event:
            event()


def evaluate_beside(tmp_path, events, max_steps=None, timeout=None, **fields):
    """Evaluates during events; returns the evaluated steps and the time."""
    recorder = Recorder()
    spec = spec_of(recorder, **fields)
    now = evaluate_specs_beside(tmp_path, events, [spec], max_steps, timeout)
    return recorder.calls, now


def evaluate_specs_beside(tmp_path, events, specs, max_steps, timeout=None):
    """Evaluates during events; returns the time."""
    world = World(events)
    estimator = linear_estimator(tmp_path)
    evaluations = Evaluations(estimator, specs, max_steps, world.clock)
    ContinuousEvaluator(
        estimator, evaluations, max_steps, world.clock, world.sleep
    ).run(timeout)
    return world.now


def spec_of(recorder, **fields):
    """A spec that evaluates each new checkpoint and records its step."""
    return kte.EvalSpec(
        HELD_OUT,
        exporters=recorder,
        **{"start_delay_secs": 0, "throttle_secs": 0} | fields,
    )


class Once(kte.hooks.SessionRunHook):
    """Calls a function before or at the end of the first evaluation."""

    def __init__(self, do, when="end"):
        self.do = do
        setattr(self, when, self.call)

    def call(self, *_):
        do, self.do = self.do, lambda: None
        do()


@pytest.fixture
def train_to(tmp_path):
    """Trains to a step, as another process would."""
    estimator = linear_estimator(tmp_path, save_every=100)

    def train_to(step):
        return lambda: estimator.train(TRAIN, max_steps=step)

    return train_to


@pytest.fixture
def ends(tmp_path):
    """Marks the training as complete."""
    return lambda: state_file.mark_complete(tmp_path, 0)


def steps(calls):
    return [step for step, *_ in calls]


def test_each_new_checkpoint_until_the_last_step(tmp_path, train_to):
    calls, now = evaluate_beside(
        tmp_path,
        {2: train_to(2), 5: train_to(4), 9: train_to(6)},
        max_steps=6,
    )
    assert steps(calls) == [2, 4, 6]
    assert [is_final for *_, is_final in calls] == [False, False, True]
    assert calls[1][2] == str(tmp_path / "model.ckpt-4")
    assert now == 9


@pytest.mark.parametrize(
    ("fields", "evaluated"),
    [
        ({"throttle_secs": 3}, [2, 4, 8]),
        ({"throttle_secs": 600}, [2, 8]),
        ({"throttle_steps": 2}, [2, 4, 8]),
        ({"throttle_steps": 3}, [2, 8]),
        ({"start_delay_secs": 2.5}, [4, 8]),
        ({"start_delay_secs": 600}, [8]),
    ],
)
def test_evaluations_keep_the_interval_but_include_the_last(
    fields, evaluated, tmp_path, train_to
):
    events = {1: train_to(2), 2: train_to(4), 7: train_to(8)}
    calls, _ = evaluate_beside(tmp_path, events, max_steps=8, **fields)
    assert steps(calls) == evaluated


def test_end_of_training_ends_evaluation(tmp_path, train_to, ends):
    calls, now = evaluate_beside(
        tmp_path, {1: train_to(2), 3: train_to(4), 4: ends}, max_steps=100
    )
    assert steps(calls) == [2, 4]
    assert now == 4
    assert not calls[-1][-1]


def test_marker_of_an_earlier_training_is_ignored(tmp_path, train_to, ends):
    train_to(2)()
    ends()
    calls, now = evaluate_beside(
        tmp_path,
        {
            3: lambda: state_file.unmark_complete(tmp_path),
            7: train_to(4),
            8: ends,
        },
        start_delay_secs=5,
    )
    assert steps(calls) == [2, 4]
    assert now == 8


def test_last_checkpoint_is_evaluated_after_training(tmp_path, train_to, ends):
    def end():
        train_to(4)()
        ends()

    calls, _ = evaluate_beside(tmp_path, {1: train_to(2), 2: end}, throttle_secs=600)
    assert steps(calls) == [2, 4]


def test_training_without_a_checkpoint_ends_evaluation(tmp_path, ends):
    calls, now = evaluate_beside(tmp_path, {3: ends})
    assert (calls, now) == ([], 3)


def test_waiting_may_have_a_timeout(tmp_path, train_to, caplog):
    calls, now = evaluate_beside(
        tmp_path,
        {4: train_to(2), 6: train_to(4), 99: ends},
        timeout=5,
        throttle_secs=600,
    )
    assert steps(calls) == [2, 4]
    assert now == 11
    assert "No new checkpoint in 5 s" in caplog.text


@pytest.fixture
def continues(tmp_path):
    """Continues to step 4, and keeps no other checkpoint."""
    estimator = linear_estimator(
        tmp_path, save_every=100, config={"keep_checkpoint_max": 1}
    )
    return lambda: estimator.train(TRAIN, max_steps=4)


@pytest.mark.parametrize("throttle", [{}, {"throttle_steps": 100}])
def test_checkpoint_removed_between_two_specs(
    throttle, tmp_path, train_to, continues, caplog
):
    one, two = Recorder("one"), Recorder("two")
    specs = [
        spec_of(one, name="one", hooks=[Once(continues)]),
        spec_of(two, name="two", **throttle),
    ]
    train_to(2)()
    evaluate_specs_beside(tmp_path, {1: train_to(6)}, specs, max_steps=6)
    assert (one.steps, two.steps) == ([2, 4, 6], [4, 6])
    (record,) = [r for r in caplog.records if "was removed" in r.getMessage()]
    assert "model.ckpt-2 was removed" in record.getMessage()


def test_checkpoint_removed_before_an_export(tmp_path, train_to, continues):
    class Copy(Recorder):
        def export(self, *, checkpoint_path, **rest):
            once()
            kte.checkpoints.read(checkpoint_path)
            super().export(checkpoint_path=checkpoint_path, **rest)

    once = Once(continues).call
    copies = Copy()
    train_to(2)()
    evaluate_specs_beside(tmp_path, {}, [spec_of(copies)], max_steps=4)
    assert copies.steps == [4]


def test_last_checkpoint_by_the_clock_may_be_removed(tmp_path, train_to, continues):
    two = Recorder()
    specs = [spec_of(Recorder("one"), name="one", hooks=[Once(continues)])]
    specs.append(spec_of(two, name="two", start_delay_secs=600))
    train_to(2)()
    evaluate_specs_beside(tmp_path, {}, specs, None, timeout=0)
    assert two.steps == [4]


def test_other_errors_are_raised(tmp_path, train_to):
    def fail():
        raise OSError("no such table")

    train_to(2)()
    with pytest.raises(OSError, match="no such table"):
        evaluate_beside(tmp_path, {}, max_steps=2, hooks=[Once(fail)])


def test_completed_training_is_not_awaited(tmp_path, train_to):
    train_to(4)()
    calls, now = evaluate_beside(tmp_path, {}, max_steps=4, start_delay_secs=600)
    assert (steps(calls), now) == ([4], 0)


def test_several_specs_and_their_results(tmp_path, train_to):
    train_to(4)()
    names = ("one", "two")
    specs = [kte.EvalSpec(HELD_OUT, name=name) for name in names]
    metrics, exports = kte.evaluate_continuously(
        linear_estimator(tmp_path), specs, max_steps=4
    )
    assert [metrics[name]["global_step"] for name in names] == [4, 4]
    assert exports == {"one": [], "two": []}


def test_estimator_is_required():
    with pytest.raises(TypeError, match="`estimator` must be a TPUEst"):
        kte.evaluate_continuously("linear", kte.EvalSpec(HELD_OUT))


@pytest.mark.parametrize(("max_steps", "error"), [(0, ValueError), ("all", TypeError)])
def test_last_step_must_be_positive(max_steps, error, tmp_path):
    with pytest.raises(error, match="`max_steps` must be"):
        kte.evaluate_continuously(
            linear_estimator(tmp_path), kte.EvalSpec(HELD_OUT), max_steps
        )


CODE = """
import json, sys
from training_helpers import HELD_OUT, Recorder, linear_estimator
import keras_tpu_estimator as kte

recorder = Recorder()
spec = kte.EvalSpec(
    HELD_OUT, name="beside", exporters=recorder,
    start_delay_secs=0, throttle_secs=0)
estimator = linear_estimator(sys.argv[1])
metrics, _ = kte.evaluate_continuously(estimator, spec, timeout_secs=60)
print(json.dumps([recorder.steps, float(metrics["loss"])]))
"""


@pytest.mark.usefixtures("forked_programs")
def test_two_processes(tmp_path):
    here = os.path.dirname(__file__)
    path = os.pathsep.join([here, os.path.dirname(here), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", CODE, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as evaluator:
        estimator = linear_estimator(tmp_path)
        metrics, _ = kte.train_and_evaluate(
            estimator,
            kte.TrainSpec(TRAIN, max_steps=6),
            kte.EvalSpec(HELD_OUT),
        )
        printed, _ = evaluator.communicate(timeout=60)
    evaluated, loss = json.loads(printed)
    assert evaluated[-1] == 6
    assert loss == pytest.approx(metrics["loss"], rel=1e-6)


def test_custom_loop(tmp_path, train_to, ends):
    train_to(4)()
    ends()
    estimator = linear_estimator(tmp_path)
    found = [
        int(estimator.evaluate(HELD_OUT, checkpoint_path=path)["global_step"])
        for path in kte.checkpoints_iterator(
            tmp_path,
            timeout=0,
            timeout_fn=lambda: kte.checkpoints.training_is_complete(tmp_path),
        )
    ]
    assert found == [4]
