"""Tests that `TrainSpec` and `EvalSpec` validate their fields."""

import dataclasses
import math

import keras
import pytest
from training_helpers import Recorder

import keras_tpu_estimator as kte

HOOK = kte.hooks.StopAtStepHook(last_step=1)
LISTENER = kte.hooks.CheckpointSaverListener()


def input_fn(params):
    """A function that is never called."""


def test_fields_of_train_spec_by_default_and_in_order():
    spec = kte.TrainSpec(input_fn)
    assert (spec.max_steps, spec.hooks, spec.saving_listeners) == (None, (), ())
    spec = kte.TrainSpec(input_fn, 5, [HOOK], [LISTENER])
    assert dataclasses.astuple(spec)[0] is input_fn
    assert (spec.max_steps, spec.hooks) == (5, (HOOK,))
    assert spec.saving_listeners == (LISTENER,)


def test_fields_of_eval_spec_by_default_and_in_order():
    spec = kte.EvalSpec(input_fn)
    assert (spec.steps, spec.name, spec.hooks) == (100, None, ())
    assert (spec.exporters, spec.start_delay_secs) == ((), 120)
    assert (spec.throttle_secs, spec.throttle_steps) == (600, None)
    exporter = Recorder()
    spec = kte.EvalSpec(input_fn, 7, "test", [HOOK], exporter, 1.5, 2.5)
    assert (spec.steps, spec.name, spec.hooks) == (7, "test", (HOOK,))
    assert (spec.exporters, spec.start_delay_secs) == ((exporter,), 1.5)
    assert spec.throttle_secs == 2.5


def test_specs_are_immutable():
    for spec in (kte.TrainSpec(input_fn), kte.EvalSpec(input_fn)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            spec.hooks = ()


def test_error_names_steps_between_evaluations():
    with pytest.raises(TypeError, match="positional"):
        kte.EvalSpec(input_fn, 1, None, None, None, 0, 0, 5)


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": None},
        {"start_delay_secs": 0, "throttle_secs": 0},
        {"exporters": [Recorder("a"), Recorder("b")]},
        {"exporters": iter([Recorder()])},
        {"hooks": [keras.callbacks.Callback()]},
        {"throttle_steps": 1},
    ],
)
def test_valid_fields_of_eval_spec(fields):
    assert kte.EvalSpec(input_fn, **fields).input_fn is input_fn


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"input_fn": [1]}, TypeError, "`input_fn` must be a function"),
        ({"max_steps": 0}, ValueError, "Must specify max_steps > 0"),
        ({"max_steps": -1}, ValueError, "Must specify max_steps > 0"),
        ({"max_steps": "9"}, TypeError, "`max_steps` must be an int"),
        ({"hooks": [1]}, TypeError, "must be SessionRunHook instances"),
        ({"hooks": HOOK}, TypeError, r"Pass hooks=\[hook\] for one"),
        (
            {"saving_listeners": [HOOK]},
            TypeError,
            "must be CheckpointSaverListener instances",
        ),
    ],
)
def test_invalid_fields_of_train_spec_are_refused(fields, error, message):
    with pytest.raises(error, match=message):
        kte.TrainSpec(**{"input_fn": input_fn} | fields)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"input_fn": None}, TypeError, "`input_fn` must be a function"),
        ({"steps": 0}, ValueError, "Must specify steps > 0"),
        ({"steps": -1}, ValueError, "Must specify steps > 0"),
        ({"steps": "all"}, TypeError, "`steps` must be an int"),
        ({"name": 1}, TypeError, "`name` must be a string"),
        ({"hooks": [1]}, TypeError, "must be SessionRunHook instances"),
        (
            {"start_delay_secs": -1},
            ValueError,
            "`start_delay_secs` must be 0 or more",
        ),
        (
            {"throttle_secs": -0.1},
            ValueError,
            "`throttle_secs` must be 0 or more",
        ),
        (
            {"throttle_secs": math.nan},
            ValueError,
            "`throttle_secs` must be 0 or more",
        ),
        (
            {"throttle_secs": None},
            TypeError,
            "`throttle_secs` must be a number",
        ),
        ({"throttle_steps": 0}, ValueError, "must be positive"),
        ({"throttle_steps": 1.0}, TypeError, "must be an int"),
        ({"exporters": 1}, TypeError, "`exporters` must be an Exporter"),
        ({"exporters": ["a"]}, TypeError, "`exporters` must be an Exporter"),
        (
            {"exporters": Recorder(None)},
            ValueError,
            "name of an exporter must be a valid name",
        ),
        ({"exporters": Recorder("")}, ValueError, "Received: ''"),
        ({"exporters": Recorder(1)}, ValueError, "Received: 1"),
        (
            {"exporters": [Recorder("a"), Recorder("a")]},
            ValueError,
            "Received twice: 'a'",
        ),
    ],
)
def test_invalid_fields_of_eval_spec_are_refused(fields, error, message):
    with pytest.raises(error, match=message):
        kte.EvalSpec(**{"input_fn": input_fn} | fields)
