"""Tests that `InMemoryEvaluatorHook` evaluates without changing training."""

import glob

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
    squared_error,
)

import keras_tpu_estimator as kte

X, Y = regression_data()
HELD_OUT = regression_data(examples=37, seed=1)


def restless(features, is_training):
    """A network with batch statistics and random numbers."""
    x = keras.layers.Dense(4)(features)
    x = keras.layers.BatchNormalization()(x, training=is_training)
    x = keras.layers.Dropout(0.5, seed=3)(x, training=is_training)
    return keras.layers.Dense(1)(x)


def with_metrics(network):
    """A model_fn that has accumulators only in EVAL."""

    def model_fn(features, labels, mode, params):
        if mode != kte.ModeKeys.EVAL:
            return model_fn_of(network)(features, labels, mode, params)
        outputs = network(features, False)
        error = kte.metrics.mean_absolute_error(labels, outputs)
        return kte.EstimatorSpec(
            mode,
            loss=squared_error(outputs, labels),
            eval_metric_ops={"mae": error},
        )

    return model_fn


def evaluator(estimator, **arguments):
    return kte.experimental.InMemoryEvaluatorHook(
        estimator, batches_of(*HELD_OUT), **arguments
    )


def written(directory):
    """The values that an evaluation wrote, by step, for each tag."""
    from tensorboard.backend.event_processing import event_accumulator

    events = event_accumulator.EventAccumulator(str(directory)).Reload()
    return {
        tag: {event.step: event.value for event in events.Scalars(tag)}
        for tag in events.Tags()["scalars"]
    }


@pytest.mark.parametrize(
    ("iterations", "every", "steps", "evaluated"),
    [
        (1, 2, 5, [0, 2, 4, 5]),
        (1, 5, 5, [0, 5]),
        (1, 100, 3, [0, 3]),
        (4, 1, 10, [0, 4, 8, 10]),
        (4, 2, 10, [0, 8, 10]),
    ],
)
def test_evaluates_at_the_start_between_and_at_the_end(
    iterations, every, steps, evaluated, tmp_path
):
    estimator = estimator_of(model_fn_of(linear), tmp_path, iterations=iterations)
    hook = evaluator(estimator, every_n_iter=every)
    estimator.train(repeated(X, Y), hooks=[hook], steps=steps)
    assert list(written(tmp_path / "eval")["loss"]) == evaluated


@pytest.mark.parametrize("use_tpu", [False, True])
def test_results_match_evaluations_of_checkpoints(use_tpu, tmp_path):
    estimator = estimator_of(
        model_fn_of(restless),
        tmp_path,
        use_tpu=use_tpu,
        config={"save_checkpoints_steps": 4},
    )
    hook = evaluator(estimator, every_n_iter=1, name="memory")
    estimator.train(repeated(X, Y), hooks=[hook], steps=8)
    losses = written(tmp_path / "eval_memory")["loss"]
    for step in (0, 4, 8):
        result = estimator.evaluate(
            batches_of(*HELD_OUT),
            checkpoint_path=str(tmp_path / f"model.ckpt-{step}"),
        )
        assert result["global_step"] == step
        assert losses[step] == pytest.approx(result["loss"], rel=1e-6)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_evaluations_do_not_change_training(use_tpu, tmp_path):
    kernels = []
    for name in ("with", "without"):
        estimator = estimator_of(
            model_fn_of(restless), tmp_path / name, use_tpu=use_tpu
        )
        hooks = [evaluator(estimator, every_n_iter=1)] if name == "with" else []
        estimator.train(repeated(X, Y), hooks=hooks, steps=12)
        names = estimator.get_variable_names()
        kernels.append(estimator.get_variable_value(names))
        assert len(glob.glob(str(tmp_path / name / "*.h5"))) == 2
    for one, other in zip(*kernels, strict=True):
        np.testing.assert_array_equal(one, other)


def test_evaluation_needs_no_checkpoint(tmp_path):
    estimator = estimator_of(
        model_fn_of(linear), tmp_path, config={"save_checkpoints_secs": None}
    )
    estimator.train(repeated(X, Y), hooks=[evaluator(estimator)], steps=100)
    losses = written(tmp_path / "eval")["loss"]
    assert losses[100] < 1e-3 * losses[0]
    assert not glob.glob(str(tmp_path / "*.h5"))


def test_evaluation_may_have_additional_variables(tmp_path):
    estimator = estimator_of(with_metrics(linear), tmp_path)
    hook = evaluator(estimator, every_n_iter=1)
    estimator.train(repeated(X, Y), hooks=[hook], steps=8)
    errors = written(tmp_path / "eval")["mae"]
    assert errors[0] == pytest.approx(np.abs(HELD_OUT[1]).mean(), rel=1e-5)
    assert errors[8] < errors[4] < errors[0]
    assert "dense/kernel" in estimator.get_variable_names()
    result = estimator.evaluate(batches_of(*HELD_OUT))
    assert errors[8] == pytest.approx(result["mae"], rel=1e-5)


def test_listener_may_evaluate_during_training(tmp_path):
    results = []

    class Evaluate(kte.hooks.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            results.append(estimator.evaluate(batches_of(*HELD_OUT)))

    estimator = estimator_of(
        with_metrics(linear), tmp_path, config={"save_checkpoints_steps": 4}
    )
    estimator.train(repeated(X, Y), steps=8, saving_listeners=[Evaluate()])
    assert [int(result["global_step"]) for result in results] == [0, 4, 8]
    assert results[2]["mae"] < results[1]["mae"] < results[0]["mae"]


def test_evaluation_uses_given_steps_and_hooks(tmp_path):
    log = []

    class Log(kte.hooks.SessionRunHook):
        def end(self, session):
            log.append(session.run(["global_step", "loss"]))

    estimator = estimator_of(model_fn_of(linear), tmp_path, batch=8)
    hook = evaluator(estimator, steps=2, hooks=[Log()])
    estimator.train(repeated(X, Y), hooks=[hook], steps=4)
    assert [int(step) for step, _ in log] == [0, 4]
    expected = np.mean(HELD_OUT[1][:16] ** 2)
    assert log[0][1] == pytest.approx(expected, rel=1e-5)


def test_hook_may_be_reused(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path, iterations=1)
    hook = evaluator(estimator, every_n_iter=2)
    estimator.train(repeated(X, Y), hooks=[hook], steps=3)
    estimator.train(repeated(X, Y), hooks=[hook], steps=3)
    assert set(written(tmp_path / "eval")["loss"]) == {0, 2, 3, 5, 6}


@pytest.mark.parametrize("every", [None, 0, -1])
def test_interval_must_be_positive(every, tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    with pytest.raises(
        ValueError, match=f"`every_n_iter` must be .* Received: {every}"
    ):
        evaluator(estimator, every_n_iter=every)


def test_other_estimators_are_refused(tmp_path):
    one = estimator_of(model_fn_of(linear), tmp_path / "one")
    other = estimator_of(model_fn_of(linear), tmp_path / "other")
    with pytest.raises(ValueError, match="must be the one that trains them"):
        one.train(repeated(X, Y), hooks=[evaluator(other)], steps=1)


def test_wrong_hooks_of_the_evaluation_are_refused(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    with pytest.raises(TypeError, match="All `hooks` must be SessionRunHook"):
        evaluator(estimator, hooks=["hook"])
