"""Tests of dry runs and of reports about a stall."""

import os
import threading

import numpy as np
import pytest
from helpers import batches_of, estimator_of, linear, model_fn_of, regression_data

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.hooks import stall

X, Y = regression_data(examples=64)


class Runs(kte.hooks.SessionRunHook):
    """Counts the runs of a loop."""

    count = 0

    def after_run(self, run_context, run_values):
        self.count += 1


def linear_estimator(model_dir, **config):
    return estimator_of(model_fn_of(linear), model_dir, config=config)


@pytest.mark.parametrize("arguments", [{"steps": 50}, {"max_steps": 50}, {}])
def test_dry_run_makes_one_step_of_each_mode(tmp_path, arguments):
    estimator = linear_estimator(tmp_path, fast_dev_run=True)
    runs = [Runs(), Runs()]
    estimator.train(batches_of(X, Y), hooks=[runs[0]], **arguments)
    assert estimator.get_variable_value("global_step") == 1
    result = estimator.evaluate(batches_of(X, Y), hooks=[runs[1]])
    weights = estimator.get_variable_value("dense/kernel")
    expected = np.mean((X[:16] @ weights - Y[:16]) ** 2)
    np.testing.assert_allclose(result["loss"], expected, rtol=0.1)
    assert [run.count for run in runs] == [1, 1]
    assert len(list(estimator.predict(batches_of(X)))) == 16


def test_dry_run_does_not_change_the_model_dir(tmp_path):
    real = linear_estimator(tmp_path)
    real.train(batches_of(X, Y), steps=2)
    before = sorted(os.listdir(tmp_path))
    trial = linear_estimator(tmp_path, fast_dev_run=True)
    trial.train(batches_of(X, Y), max_steps=2)
    assert trial.model_dir != str(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before
    assert trial.get_variable_value("global_step") == 1


# With such a short limit, a slow machine also causes stalls.
STALL_SECS = 0.05
shown = threading.Event()


@pytest.fixture(autouse=True)
def showing_is_noticed(monkeypatch):
    """Sets the event `shown` whenever stacks are printed."""
    print_stacks = stall.print_stacks

    def noticed(why):
        print_stacks(why)
        shown.set()

    monkeypatch.setattr(stall, "print_stacks", noticed)


def hang():
    """Waits until the stacks during this call have been printed."""
    for _ in range(2):  # The first report may have begun before this call.
        shown.clear()
        assert shown.wait(60)


def hanging_input(params):
    yield from batches_of(X[:16], Y[:16])(params)
    hang()
    yield from batches_of(X[:16], Y[:16])(params)


@pytest.mark.parametrize("mode", ["train", "evaluate", "predict"])
def test_stall_shows_all_stacks(mode, tmp_path, capfd):
    estimator = linear_estimator(tmp_path, stall_timeout_secs=STALL_SECS)
    results = getattr(estimator, mode)(hanging_input)
    if mode == "predict":
        assert len(list(results)) >= 16
    _, printed = capfd.readouterr()
    assert "No step has ended for " in printed
    assert "in hanging_input" in printed
    assert "Thread infeed:" in printed
    assert "Thread MainThread:" in printed


def blocking_input_fn(params):
    hang()
    return X[:16], Y[:16]


def blocking_before_the_first_batch(params):
    hang()
    yield from batches_of(X[:16], Y[:16])(params)


def blocking_model_fn(features, labels, mode, params):
    hang()
    return model_fn_of(linear)(features, labels, mode, params)


@pytest.mark.parametrize("mode", ["train", "evaluate", "predict"])
@pytest.mark.parametrize(
    ("input_fn", "model_fn", "where"),
    [
        (blocking_input_fn, model_fn_of(linear), "in blocking_input_fn"),
        (
            blocking_before_the_first_batch,
            model_fn_of(linear),
            "in blocking_before_the_first_batch",
        ),
        (batches_of(X[:16], Y[:16]), blocking_model_fn, "in blocking_model_fn"),
    ],
)
def test_stall_before_the_first_step_is_reported(
    input_fn, model_fn, where, mode, tmp_path, capfd
):
    estimator = estimator_of(
        model_fn, tmp_path, config={"stall_timeout_secs": STALL_SECS}
    )
    steps = {} if mode == "predict" else {"steps": 1}
    results = getattr(estimator, mode)(input_fn, **steps)
    if mode == "predict":
        assert next(results)
        results.close()
    _, printed = capfd.readouterr()
    assert "No step has ended for " in printed
    assert where in printed


def test_leaving_predictions_closes_the_input(tmp_path):
    closed = []

    def input_fn(params):
        try:
            while True:
                yield X[:16]
        finally:
            closed.append(True)

    estimator = linear_estimator(tmp_path, stall_timeout_secs=60)
    predictions = estimator.predict(input_fn)
    next(predictions)
    assert not closed
    predictions.close()
    assert closed == [True]


def test_watch_stops_after_a_call(tmp_path):
    def watches():
        return sum(t.name == "stall-watch" for t in threading.enumerate())

    def input_fn(params):
        seen.append(watches())
        yield X[:16]

    seen = []
    estimator = linear_estimator(tmp_path, stall_timeout_secs=60)
    predictions = estimator.predict(input_fn)
    next(predictions)
    assert seen == [1]
    # A slow consumer is not a stall.
    assert watches() == 0
    predictions.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fast_dev_run", 1),
        ("stall_timeout_secs", 0),
        ("stall_timeout_secs", "5"),
    ],
)
def test_wrong_settings(field, value):
    with pytest.raises(ValueError, match=f"`{field}` must be"):
        kte.RunConfig(**{field: value})
