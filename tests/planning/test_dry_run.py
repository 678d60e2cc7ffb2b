"""Dry runs plan a script's calls instead of executing them."""

import gc
import os
import re
import threading

import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, linear, model_fn_of, regression_data

import keras_tpu_estimator as kte
from keras_tpu_estimator.planning import compiling, topologies
from keras_tpu_estimator.planning.dry_run import DryRun
from keras_tpu_estimator.runs.call_receiver import receiving_calls

X, Y = regression_data()
V5E = topologies.parse("v5e:2x2")


@pytest.fixture
def dry_run():
    dry_run = DryRun([V5E], write=lambda text: None)
    with receiving_calls(dry_run):
        yield dry_run


def estimator(tmp_path):
    return estimator_of(model_fn_of(linear), tmp_path / "run", use_tpu=True)


def modes(dry_run):
    return [plan.mode for plan in dry_run.plans]


def test_calls_are_planned_and_not_executed(tmp_path, dry_run):
    own = estimator(tmp_path)
    assert own.train(batches_of(X, Y), steps=100) is own
    result = own.evaluate(batches_of(X, Y))
    assert np.isnan(result["loss"])
    assert np.isnan(result["whatever it is called"])
    assert result["global_step"] == 0
    rows = list(own.predict(batches_of(X)))
    assert len(rows) == 16
    assert rows[0]["y"].shape == (1,)
    (batch, *_) = own.predict(batches_of(X), yield_single_examples=False)
    np.testing.assert_array_equal(batch["y"], np.zeros((16, 1)))
    assert modes(dry_run) == ["train", "eval", "infer"]
    assert not os.path.exists(tmp_path / "run")


def test_an_evaluation_has_the_names_of_its_metrics(tmp_path, dry_run):
    def model_fn(features, labels, mode, params):
        outputs = keras.layers.Dense(1)(features)
        loss = keras.ops.mean((outputs - labels) ** 2)
        return kte.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, [labels, outputs])
        )

    def metric_fn(labels, outputs):
        return {"error": kte.metrics.mean_absolute_error(labels, outputs)}

    own = estimator_of(model_fn, tmp_path / "run", use_tpu=True)
    result = dict(own.evaluate(batches_of(X, Y)))
    assert result.keys() == {"error", "loss", "global_step"}
    assert np.isnan(result["error"])


def test_a_long_compilation_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "_FIRST_SECS", 1e-3)
    lines = []
    dry_run = DryRun([V5E], lambda text: None, report=lines.append)
    with receiving_calls(dry_run):
        estimator(tmp_path).train(batches_of(X, Y), steps=1)
    assert lines[0] == "Compiling mode 'train' for v5e:2x2 ..."
    assert re.fullmatch(r"Compiling mode 'train' has taken \d+ s so far\.", lines[1])
    # The time doubles from line to line, and nothing follows the last one.
    assert len(lines) < 20
    assert all(thread.name != "progress" for thread in threading.enumerate())


def test_calls_of_few_steps(tmp_path, dry_run):
    own = estimator(tmp_path)
    own.train(
        batches_of(X, Y),
        max_steps=3,
        validation=batches_of(X, Y),
        validation_steps=2,
    )
    # Programs have room for the loops of longer calls.
    assert [plan.steps for plan in dry_run.plans] == [4, 32]
    assert [plan.call_steps for plan in dry_run.plans] == [3, 2]
    estimator(tmp_path).evaluate(batches_of(X, Y), steps=5)
    assert dry_run.plans[-1].steps == 32
    assert dry_run.plans[-1].call_steps == 5


def test_topologies_larger_than_this_machine(tmp_path, dry_run):
    own = estimator_of(
        model_fn_of(linear),
        tmp_path,
        use_tpu=True,
        config={"tf_random_seed": 1} and {},
    )
    own.train(batches_of(X, Y), max_steps=100)
    (plan,) = dry_run.plans
    assert plan.topology.num_cores == 4


def test_equal_calls_are_planned_once(tmp_path, dry_run):
    own = estimator(tmp_path)
    for _ in range(3):
        own.train(batches_of(X, Y), steps=1)
        own.evaluate(batches_of(X, Y))
    assert modes(dry_run) == ["train", "eval"]


def reading(examples, size=3):
    """A closure with the same code for any data."""
    return batches_of(
        np.zeros((examples, size), "float32"),
        np.zeros((examples, 1), "float32"),
    )


def test_closures_with_other_batches_are_planned(tmp_path, dry_run):
    own = estimator(tmp_path)
    for examples in (8, 8, 16):
        own.evaluate(reading(examples))
        own.train(reading(examples), steps=2)
    # Training repeats 8 examples to batches of 16.
    assert modes(dry_run).count("eval") == 2


def test_all_numbers_of_steps_have_one_program(tmp_path, dry_run):
    own = estimator(tmp_path)
    for steps in (1, 2, 4, 100, 200):
        own.train(reading(64), steps=steps)
    found = [(plan.steps, plan.call_steps) for plan in dry_run.plans]
    # In longer calls, the devices also hold the input of later loops.
    assert found == [(4, 1), (4, 100)]


def adam():
    return keras.optimizers.Adam(0.01)


def test_slots_of_training_stay_on_the_devices(tmp_path, dry_run):
    own = estimator_of(model_fn_of(linear, adam), tmp_path, use_tpu=True)
    own.evaluate(batches_of(X, Y))
    own.train(batches_of(X, Y), steps=4)
    own.evaluate(batches_of(X[:32], Y[:32]), steps=1)
    list(own.predict(batches_of(X)))
    alone, training, later, prediction = dry_run.plans
    slots = training.cost.memory.arguments["slots"]
    assert slots.real > 0
    kept = "slots kept from training"
    assert kept not in alone.cost.memory.arrays
    for plan in (later, prediction):
        assert plan.cost.memory.beside[kept] == slots


def test_other_estimators_keep_their_values(tmp_path, dry_run):
    first, second = (
        estimator_of(model_fn_of(linear, adam), tmp_path / name, use_tpu=True)
        for name in "ab"
    )
    first.train(batches_of(X, Y), steps=4)
    second.evaluate(batches_of(X, Y))
    del first
    gc.collect()
    second.train(batches_of(X, Y), steps=4)
    trained, beside, later = (plan.cost.memory for plan in dry_run.plans)
    kept = trained.arguments["variables"].real + trained.arguments["slots"].real
    assert beside.beside["kept by other estimators"].real == kept
    assert "kept by other estimators" not in later.beside


def test_staged_batches_count(tmp_path, dry_run):
    own = estimator(tmp_path)
    own.train(batches_of(X, Y), steps=100)
    own.train(batches_of(X, Y), steps=2)
    many, one = (plan.cost.memory for plan in dry_run.plans)
    given = many.arguments["input"].real
    assert many.beside["input staged ahead"].real == 9 * given
    assert many.peak > sum(held.real for held in many.arguments.values())
    assert not one.beside


def test_a_script_that_waits_for_a_checkpoint_ends(tmp_path, dry_run, monkeypatch):
    monkeypatch.setattr("keras_tpu_estimator.planning.dry_run._MOST_CALLS", 10)
    own = estimator(tmp_path)
    with pytest.raises(RuntimeError, match="the same call of mode 'train' 10 times"):
        while own.latest_checkpoint() is None:
            own.train(batches_of(X, Y), steps=1)


def test_validation_is_planned(tmp_path, dry_run):
    estimator(tmp_path).train(batches_of(X, Y), steps=1, validation=batches_of(X, Y))
    assert modes(dry_run) == ["train", "eval"]


def test_train_and_evaluate(tmp_path, dry_run):
    exporter = kte.FinalExporter("final", lambda: None)
    metrics, exports = kte.train_and_evaluate(
        estimator(tmp_path),
        kte.TrainSpec(batches_of(X, Y), max_steps=10),
        kte.EvalSpec(batches_of(X, Y), exporters=exporter),
    )
    assert np.isnan(metrics["loss"])
    assert exports == [None]
    assert modes(dry_run) == ["train", "eval"]
    assert not os.path.exists(tmp_path / "run")


def test_continuous_evaluation(tmp_path, dry_run):
    metrics, _ = kte.evaluate_continuously(
        estimator(tmp_path), kte.EvalSpec(batches_of(X, Y), steps=None)
    )
    assert np.isnan(metrics["loss"])


def test_exports_are_skipped(tmp_path, dry_run):
    path = estimator(tmp_path).export_saved_model(tmp_path / "e", lambda: None)
    assert path == str(tmp_path / "e" / "0")
    assert not os.path.exists(tmp_path / "e")


def test_invalid_arguments_are_refused(tmp_path, dry_run):
    own = estimator(tmp_path)
    with pytest.raises(ValueError, match="one of `steps` and `max_steps`"):
        own.train(batches_of(X, Y), steps=1, max_steps=1)
    assert not dry_run.plans


def test_calls_are_executed_after_the_dry_run(tmp_path):
    with receiving_calls(DryRun([V5E], write=lambda text: None)):
        pass
    own = estimator(tmp_path).train(batches_of(X, Y), steps=1)
    assert own.get_variable_value("global_step") == 1
