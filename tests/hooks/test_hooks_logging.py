"""Tests the lines that `LoggingTensorHook` logs, and their steps."""

import logging
import re

import jax
import keras
import numpy as np
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
from keras_tpu_estimator.api.hooks.hook_list import HookList
from keras_tpu_estimator.typing import Session

X, Y = regression_data()
Logging = kte.hooks.LoggingTensorHook
BIAS = np.array([0.00001, 2.0])


@pytest.fixture
def lines(caplog):
    """Returns the logged lines without times."""
    caplog.set_level(logging.INFO, "keras_tpu_estimator")
    return lambda: [
        re.sub(r" \(\d+\.\d{3} sec\)$", " (t)", record.getMessage())
        for record in caplog.records
    ]


def run(hook, runs):
    """Makes runs of one step, each with a tenth of its number as the loss."""
    now = {"global_step": 0, "loss": np.float64(0), "bias": BIAS}
    hooks = HookList([hook], Session(now.__getitem__))
    hooks.begin()
    hooks.after_create_session()
    for number in range(1, runs + 1):
        run = hooks.before_run()
        now |= {"global_step": number, "loss": np.float64(number / 10)}
        run.after_run()
    hooks.end()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"every_n_iter": 1}, [0.1, 0.2, 0.3, 0.4, 0.5]),
        ({"every_n_iter": 2}, [0.1, 0.3, 0.5]),
        ({"every_n_iter": 100}, [0.1]),
        ({"every_n_secs": 0}, [0.1, 0.2, 0.3, 0.4, 0.5]),
        ({"every_n_secs": 3600}, [0.1]),
        ({"at_end": True}, [0.5]),
        ({"at_end": True, "every_n_iter": 4}, [0.1, 0.5, 0.5]),
        ({"at_end": True, "every_n_secs": 3600}, [0.1, 0.5]),
    ],
)
def test_logged_runs(arguments, expected, lines):
    run(Logging("loss", **arguments), 5)
    values = [re.match("loss = ([0-9.]+)", line)[1] for line in lines()]
    assert [float(value) for value in values] == expected


def test_hook_restarts_at_every_use(lines):
    hook = Logging(["loss"], every_n_iter=3)
    for _ in range(2):
        run(hook, 2)
    assert lines() == ["loss = 0.1"] * 2


@pytest.mark.parametrize(
    ("tensors", "line"),
    [
        ("loss", "loss = 0.2 (t)"),
        (["loss", "global_step"], "loss = 0.2, global_step = 2 (t)"),
        (("global_step", "loss"), "global_step = 2, loss = 0.2 (t)"),
        ({"z": "loss", "a": "global_step"}, "a = 2, z = 0.2 (t)"),
        (["bias"], "bias = [0.00001 2.     ] (t)"),
    ],
)
def test_format_of_lines(tensors, line, lines):
    run(Logging(tensors, every_n_iter=1), 2)
    assert lines()[0] == line.removesuffix(" (t)").replace("0.2", "0.1").replace(
        "= 2", "= 1"
    )
    assert lines()[1] == line


def test_formatter_formats_the_line(lines):
    seen = []

    def formatter(values):
        seen.append(values)
        return f"100% of {values['x']:.2f}"

    run(Logging({"x": "loss"}, every_n_iter=1, formatter=formatter), 2)
    assert lines() == ["100% of 0.10", "100% of 0.20"]
    assert seen[0] == {"x": 0.1} and isinstance(seen[0]["x"], np.ndarray)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_loops_of_training_are_logged(use_tpu, tmp_path, lines):
    values = []
    hook = Logging(
        ["global_step", "loss", "dense/bias"],
        every_n_iter=2,
        formatter=lambda v: values.append(v) or "line",
    )
    estimator = estimator_of(model_fn_of(linear), tmp_path, use_tpu=use_tpu)
    estimator.train(repeated(X, Y), hooks=[hook], steps=20)
    assert [int(v["global_step"]) for v in values] == [4, 12, 20]
    assert values[0]["loss"] > values[1]["loss"] > values[2]["loss"]
    np.testing.assert_array_equal(
        values[2]["dense/bias"], estimator.get_variable_value("dense/bias")
    )
    assert lines().count("line") == 3


def test_evaluation_is_logged(tmp_path, lines):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.evaluate(batches_of(X, Y), hooks=[Logging({"L": "loss"}, at_end=True)])
    loss = np.mean(Y**2)
    (line,) = [line for line in lines() if line.startswith("L = ")]
    assert float(line.removeprefix("L = ")) == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`at_end`, or exactly one of `every_n_iter` and"),
        ({"every_n_iter": 1, "every_n_secs": 1}, "exactly one of `every_n"),
        (
            {"every_n_iter": 1, "every_n_secs": 1, "at_end": True},
            "exactly one of `every_n",
        ),
        ({"every_n_iter": 0}, "`every_n_iter` must be a positive number"),
        ({"every_n_iter": -1}, "`every_n_iter` must .* Received: -1"),
    ],
)
def test_invalid_intervals_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Logging(["loss"], **arguments)


TENSORS = {
    "variable": lambda: [keras.Variable(1.0)],
    "array": lambda: {"loss": jax.numpy.float32(1)},
    "set": lambda: {"loss"},
    "number": lambda: 3,
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_are_given_by_name(kind):
    with pytest.raises(TypeError, match=r"`tensors` must be given by name"):
        Logging(TENSORS[kind](), every_n_iter=1)


def test_tensor_in_model_fn_is_refused_with_advice(tmp_path):
    def model_fn(features, labels, mode, params):
        loss = keras.ops.mean(features)
        hook = Logging({"loss": loss}, every_n_iter=1)
        return kte.TPUEstimatorSpec(mode, loss=loss, evaluation_hooks=[hook])

    estimator = estimator_of(model_fn, tmp_path)
    with pytest.raises(TypeError, match=r'kte.identity\(x, name="..."\) and'):
        estimator.evaluate(batches_of(X, Y))
