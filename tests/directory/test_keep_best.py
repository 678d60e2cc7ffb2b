"""Tests that the checkpoint with the best evaluation is kept."""

import json
import os

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

from keras_tpu_estimator import checkpoints, hooks, metrics
from keras_tpu_estimator.checkpoints import KeepBest, Retention
from keras_tpu_estimator.files.directory.retention import note

X, Y = regression_data()


def run(directory, losses, mode="min"):
    """Saves a checkpoint for each loss, and reports its evaluation."""
    for step, loss in losses.items():
        prefix = checkpoints.save(directory, step, {}, retention=Retention(2))
        result = {"loss": np.float32(loss)}
        note(KeepBest(mode=mode), str(directory), prefix, result)


def steps(directory):
    return sorted(
        int(name.removeprefix("model.ckpt-").removesuffix(".h5"))
        for name in os.listdir(directory)
        if name.endswith(".h5")
    )


@pytest.mark.parametrize(
    ("losses", "mode", "best", "kept"),
    [
        ({1: 5, 2: 4, 3: 6, 4: 7, 5: 8}, "min", 2, [2, 4, 5]),
        ({1: 5, 2: 4, 3: 6, 4: 7, 5: 8}, "max", 5, [4, 5]),
        ({1: 5, 2: 4, 3: 6, 4: 3, 5: 8}, "min", 4, [4, 5]),
        ({1: 1, 2: 4, 3: 1, 4: 7, 5: 8}, "min", 1, [1, 4, 5]),
        ({1: 1, 2: float("nan"), 3: 2, 4: 3}, "min", 1, [1, 3, 4]),
        ({1: float("nan"), 2: float("nan"), 3: 2}, "min", 3, [2, 3]),
    ],
)
def test_best_checkpoint_and_last_two_are_kept(tmp_path, losses, mode, best, kept):
    run(tmp_path, losses, mode)
    assert checkpoints.best(tmp_path) == str(tmp_path / f"model.ckpt-{best}")
    assert steps(tmp_path) == kept


def test_next_save_removes_a_previous_best_checkpoint(tmp_path):
    run(tmp_path, {1: 1, 2: 5, 3: 5, 4: 5})
    assert steps(tmp_path) == [1, 3, 4]
    run(tmp_path, {5: 0})
    assert steps(tmp_path) == [1, 4, 5]
    run(tmp_path, {6: 5})
    assert steps(tmp_path) == [5, 6]


def test_repeated_evaluation_counts(tmp_path):
    run(tmp_path, {1: 1, 2: 5})
    note(KeepBest(), str(tmp_path), str(tmp_path / "model.ckpt-1"), {"loss": 9})
    note(KeepBest(), str(tmp_path), str(tmp_path / "model.ckpt-2"), {"loss": 5})
    assert checkpoints.best(tmp_path).endswith("-2")


def test_other_metric_restarts_the_comparison(tmp_path):
    run(tmp_path, {1: 1, 2: 5})
    prefix = str(tmp_path / "model.ckpt-2")
    note(KeepBest("auc", "max"), str(tmp_path), prefix, {"auc": 0.1})
    assert checkpoints.best(tmp_path) == prefix


def test_deleted_best_checkpoint(tmp_path):
    run(tmp_path, {1: 1, 2: 5})
    os.remove(tmp_path / "model.ckpt-1.h5")
    assert checkpoints.best(tmp_path) is None
    run(tmp_path, {3: 6})
    assert checkpoints.best(tmp_path).endswith("-3")


def test_missing_checkpoints_and_those_elsewhere_do_not_count(tmp_path):
    other = checkpoints.save(tmp_path / "other", 1, {})
    for path in (other, str(tmp_path / "model.ckpt-9")):
        note(KeepBest(), str(tmp_path), path, {"loss": 0.0})
    assert checkpoints.best(tmp_path) is None
    assert os.listdir(tmp_path) == ["other"]


@pytest.mark.parametrize("result", [{"loss": 1.0}, {"auc": "?"}])
def test_error_for_a_nonscalar_metric_names_the_others(tmp_path, result):
    prefix = checkpoints.save(tmp_path, 1, {})
    (name,) = result
    with pytest.raises(ValueError, match=rf"'auc'.* one of \['{name}'\]"):
        note(KeepBest("auc"), str(tmp_path), prefix, result)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"checkpoint": "model.ckpt-1"}',
        json.dumps(
            {
                "checkpoint": "../model.ckpt-1",
                "metric": "loss",
                "mode": "min",
                "value": 1.0,
            }
        ),
    ],
)
def test_unreadable_file_has_advice(tmp_path, content):
    (tmp_path / "best_checkpoint.json").write_text(content)
    with pytest.raises(ValueError, match="best_checkpoint.json' .* Delete it"):
        checkpoints.best(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "auto"}, "`mode` must be 'min' or 'max'"),
        ({"metric": ""}, "`metric` must be the name"),
        ({"metric": None}, "`metric` must be the name"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        KeepBest(**arguments)


@pytest.mark.parametrize("name", [None, "test"])
def test_only_evaluations_with_one_name_count(tmp_path, name):
    keep = KeepBest("loss", mode="max", name=name)
    settings = {"keep_best": keep, "keep_checkpoint_max": 1}
    for _ in range(3):
        estimator = estimator_of(model_fn_of(linear), tmp_path, config=settings)
        estimator.train(repeated(X, Y), steps=4)
        estimator.evaluate(batches_of(X, Y), name=name)
        estimator.evaluate(batches_of(X, 100 * Y), name="other")
    # The loss only decreases, so by the maximum the first is the best.
    assert checkpoints.best(tmp_path) == str(tmp_path / "model.ckpt-4")
    assert steps(tmp_path) == [4, 12]
    found = json.loads((tmp_path / "best_checkpoint.json").read_text())
    result = estimator.evaluate(
        batches_of(X, Y), checkpoint_path=tmp_path / "model.ckpt-4"
    )
    assert found["value"] == pytest.approx(float(result["loss"]))


@pytest.mark.parametrize("content", ["[" * 10_000, '{"' + "x" * 10_000 + '": 1}', "3"])
def test_error_names_a_corrupt_file_in_few_words(tmp_path, content):
    (tmp_path / "best_checkpoint.json").write_text(content)
    with pytest.raises(ValueError, match="best_checkpoint.json' must name") as caught:
        checkpoints.best(tmp_path)
    assert len(str(caught.value)) < 500


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes in folders.")
def test_named_pipe_is_not_awaited(tmp_path):
    os.mkfifo(tmp_path / "best_checkpoint.json")
    with pytest.raises(ValueError, match="must name the best checkpoint"):
        checkpoints.best(tmp_path)


@pytest.mark.parametrize("save_steps", [1000, 8])
def test_best_validation_is_saved(tmp_path, save_steps):
    """The loss is lowest after the second of five epochs."""
    losses = iter([5.0, 2.0, 3.0, 2.5, 4.0])

    def model_fn(features, labels, mode, params):
        spec = model_fn_of(linear)(features, labels, mode, params)
        if mode != "eval":
            return spec

        def metric_fn(labels):
            return {"score": metrics.mean(labels)}

        return spec._replace(eval_metrics=(metric_fn, [labels]))

    def validation(params):
        yield X[:16], np.full((16, 1), next(losses), "float32")

    saves = []

    class Listener(hooks.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            saves.append(global_step_value)

    estimator = estimator_of(
        model_fn,
        tmp_path,
        config={
            "keep_best": KeepBest("score"),
            "keep_checkpoint_max": 1,
            "save_checkpoints_steps": save_steps,
        },
    )
    log = keras.callbacks.History()
    estimator.train(
        repeated(X, Y),
        [hooks.CallbackHook([log], steps_per_epoch=4)],
        steps=20,
        saving_listeners=[Listener()],
        validation=validation,
    )
    assert log.history["val_score"] == [5.0, 2.0, 3.0, 2.5, 4.0]
    assert checkpoints.best(tmp_path) == str(tmp_path / "model.ckpt-8")
    assert steps(tmp_path) == [8, 20]
    expected = {1000: [0, 4, 8, 20], 8: [0, 4, 8, 16, 20]}
    assert saves == expected[save_steps]
    # The values of the best epoch can be read.
    best = checkpoints.best(tmp_path)
    assert list(estimator.predict(batches_of(X), checkpoint_path=best))


def test_validation_counts_only_without_a_name(tmp_path):
    estimator = estimator_of(
        model_fn_of(linear), tmp_path, config={"keep_best": KeepBest(name="test")}
    )
    validation = batches_of(X[:16], Y[:16])
    estimator.train(repeated(X, Y), steps=8, validation=validation)
    assert checkpoints.best(tmp_path) is None
