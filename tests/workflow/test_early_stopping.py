"""Tests hooks that stop training according to evaluations."""

import functools
import os

import pytest
from training_helpers import HELD_OUT, TRAIN, Recorder, linear_estimator

import keras_tpu_estimator as kte
from keras_tpu_estimator.typing import Session

experimental = kte.experimental


def write(directory, metrics_by_step):
    """Writes the event files of evaluations."""
    with kte.summary.EventWriter(str(directory)) as writer:
        for step, metrics in metrics_by_step.items():
            writer.metrics(metrics, step)


def accuracies(*values):
    """Writes evaluations at steps 0, 10, 20 and so on."""
    return {10 * i: {"accuracy": value} for i, value in enumerate(values)}


def stops(make_hook, estimator, **arguments):
    """Whether a hook stops training after its first run."""
    hook = make_hook(estimator, **arguments)
    context = kte.hooks.SessionRunContext(Session({"global_step": 5}.get))
    hook.begin()
    hook.after_run(context, kte.hooks.SessionRunValues())
    return context.stop_requested


@pytest.mark.parametrize(
    ("hook", "arguments", "values", "expected"),
    [
        ("stop_if_higher_hook", {"threshold": 0.75}, [0.1, 0.75], False),
        ("stop_if_higher_hook", {"threshold": 0.75}, [0.1, 0.8, 0.2], True),
        (
            "stop_if_higher_hook",
            {"threshold": 0.75, "min_steps": 20},
            [0.1, 0.8, 0.2],
            False,
        ),
        (
            "stop_if_higher_hook",
            {"threshold": 0.75, "min_steps": 10},
            [0.1, 0.8, 0.2],
            True,
        ),
        ("stop_if_lower_hook", {"threshold": 0.125}, [0.5, 0.125], False),
        ("stop_if_lower_hook", {"threshold": 0.2}, [0.5, 0.125, 0.6], True),
        (
            "stop_if_no_increase_hook",
            {"max_steps_without_increase": 20},
            [0.5, 0.6, 0.55, 0.58],
            True,
        ),
        (
            "stop_if_no_increase_hook",
            {"max_steps_without_increase": 21},
            [0.5, 0.6, 0.55, 0.58],
            False,
        ),
        (
            "stop_if_no_increase_hook",
            {"max_steps_without_increase": 20},
            [0.5, 0.5, 0.5],
            True,
        ),
        (
            "stop_if_no_increase_hook",
            {"max_steps_without_increase": 20},
            [0.5, 0.4, 0.3, 0.6],
            True,
        ),
        (
            "stop_if_no_increase_hook",
            {"max_steps_without_increase": 20, "min_steps": 10},
            [0.5, 0.4, 0.6, 0.5],
            False,
        ),
        (
            "stop_if_no_decrease_hook",
            {"max_steps_without_decrease": 20},
            [0.5, 0.4, 0.45, 0.5],
            True,
        ),
        (
            "stop_if_no_decrease_hook",
            {"max_steps_without_decrease": 20},
            [0.5, 0.4, 0.3, 0.2],
            False,
        ),
    ],
)
def test_stopping_rules(hook, arguments, values, expected, tmp_path):
    estimator = linear_estimator(tmp_path)
    write(estimator.eval_dir(), accuracies(*values))
    make_hook = getattr(experimental, hook)
    assert stops(make_hook, estimator, metric_name="accuracy", **arguments) == expected


HOOKS = [
    functools.partial(experimental.stop_if_higher_hook, threshold=0),
    functools.partial(experimental.stop_if_lower_hook, threshold=1),
    functools.partial(
        experimental.stop_if_no_increase_hook, max_steps_without_increase=0
    ),
    functools.partial(
        experimental.stop_if_no_decrease_hook, max_steps_without_decrease=0
    ),
]
RULES = pytest.mark.parametrize(
    "make_hook", HOOKS, ids=[hook.func.__name__ for hook in HOOKS]
)


@RULES
def test_training_continues_without_evaluations(make_hook, tmp_path):
    estimator = linear_estimator(tmp_path)
    assert not stops(make_hook, estimator, metric_name="accuracy")


@RULES
def test_evaluations_may_be_in_another_directory(make_hook, tmp_path):
    write(tmp_path / "elsewhere", accuracies(0.5))
    assert stops(
        make_hook,
        linear_estimator(tmp_path),
        metric_name="accuracy",
        eval_dir=tmp_path / "elsewhere",
    )


@RULES
def test_missing_metric_is_named(make_hook, tmp_path):
    estimator = linear_estimator(tmp_path)
    write(estimator.eval_dir(), {0: {"loss": 1.0}, 10: {"loss": 1.0}})
    with pytest.raises(KeyError, match="step 10 .*'accuracy'.*only.*'loss'"):
        stops(make_hook, estimator, metric_name="accuracy", min_steps=5)
    assert not stops(make_hook, estimator, metric_name="accuracy", min_steps=50)


@pytest.mark.parametrize("make_hook", [*HOOKS, "any"])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"estimator": "linear"}, TypeError, "`estimator` must be a TPUEst"),
        ({"run_every_steps": 5}, ValueError, "Received: 60 and 5"),
        ({"run_every_secs": None}, ValueError, "Received: None and None"),
    ],
)
def test_invalid_arguments_are_refused(make_hook, arguments, error, message, tmp_path):
    given = {"estimator": linear_estimator(tmp_path)} | arguments
    if make_hook == "any":
        make_hook = experimental.make_early_stopping_hook
        given["should_stop_fn"] = bool
    else:
        given["metric_name"] = "loss"
    with pytest.raises(error, match=message):
        make_hook(**given)


def test_function_is_required(tmp_path):
    with pytest.raises(TypeError, match="`should_stop_fn` must be a func"):
        experimental.make_early_stopping_hook(linear_estimator(tmp_path), True)


@pytest.mark.parametrize(
    ("interval", "asked"),
    [(1, [1, 2, 3, 4, 5, 6]), (2, [1, 3, 5]), (4, [1, 5]), (100, [1])],
)
def test_steps_and_times_of_function_calls(interval, asked, tmp_path):
    estimator = linear_estimator(tmp_path)
    steps, calls = [], []

    class Step(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            steps.append(int(run_context.session.run("global_step")))

    hook = experimental.make_early_stopping_hook(
        estimator,
        lambda: calls.append(steps[-1]),
        run_every_secs=None,
        run_every_steps=interval,
    )
    estimator.train(TRAIN, hooks=[Step(), hook], steps=6)
    assert calls == asked


def test_stopping_adds_nothing_to_the_model(tmp_path):
    estimator = linear_estimator(tmp_path)
    estimator.train(TRAIN, steps=2)
    names = estimator.get_variable_names()
    answers = iter([False, True, True])
    hook = experimental.make_early_stopping_hook(
        estimator,
        lambda: next(answers),
        run_every_secs=None,
        run_every_steps=2,
    )
    estimator.train(TRAIN, hooks=[hook], max_steps=100)
    assert kte.checkpoints.step_of(estimator.latest_checkpoint()) == 5
    assert estimator.get_variable_names() == names
    estimator.train(TRAIN, hooks=[hook], max_steps=100)
    assert kte.checkpoints.step_of(estimator.latest_checkpoint()) == 6


def test_evaluations_during_training_stop_it(tmp_path):
    estimator = linear_estimator(tmp_path, save_every=10)
    reference = linear_estimator(tmp_path / "reference", save_every=10)
    reference.train(TRAIN, max_steps=30)
    threshold = reference.evaluate(HELD_OUT)["loss"] * 1.001
    recorder = Recorder()
    hook = experimental.stop_if_lower_hook(
        estimator, "loss", threshold, run_every_secs=None, run_every_steps=1
    )
    metrics, _ = kte.train_and_evaluate(
        estimator,
        kte.TrainSpec(TRAIN, max_steps=1000, hooks=[hook]),
        kte.EvalSpec(HELD_OUT, steps=None, exporters=recorder, throttle_secs=0),
    )
    # The hook runs after the evaluation of the same step.
    assert recorder.steps == [10, 20, 30]
    assert metrics["loss"] < threshold
    assert kte.checkpoints.training_is_complete(tmp_path)


def test_metrics_are_read_in_the_order_of_steps(tmp_path):
    write(tmp_path, {20: {"loss": 2.0}, 10: {"loss": 1.0, "mae": 0.5}})
    write(tmp_path, {20: {"mae": 3.0}, 10: {"loss": 4.0}})
    metrics = experimental.read_eval_metrics(tmp_path)
    assert list(metrics.items()) == [
        (10, {"loss": 4.0, "mae": 0.5}),
        (20, {"loss": 2.0, "mae": 3.0}),
    ]
    assert experimental.read_eval_metrics(tmp_path / "none") == {}


def test_metrics_are_read_from_a_directory_in_bytes(tmp_path):
    write(tmp_path, {10: {"loss": 1.0}})
    metrics = experimental.read_eval_metrics(os.fsencode(tmp_path))
    assert metrics == {10: {"loss": 1.0}}
