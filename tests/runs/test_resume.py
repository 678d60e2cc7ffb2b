"""Tests that resumed training equals training that was not interrupted."""

import glob
import logging
import os

import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - some inputs are tf.data's
from helpers import (
    each_once,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
)

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.hooks.session_run_hook import LoopHook
from keras_tpu_estimator.engine.inputs import pipeline

X, Y = regression_data(examples=80)
STEPS = 12


@pytest.fixture(autouse=True)
def states_from_the_start(monkeypatch):
    """Makes calls of less than a second also save iterator states."""
    monkeypatch.setattr(pipeline, "_DELAY_SECS", 0.0)


class Crash(Exception):
    """An error that interrupts training."""


class CrashAt(LoopHook):
    """Raises an error after a loop whose checkpoint has been saved."""

    acts_last = True

    def __init__(self, step):
        self.step = step

    def after_run(self, run_context, run_values):
        if run_context.session.run("global_step") == self.step:
            raise Crash


class CrashInEnd(kte.hooks.SessionRunHook):
    """Raises an error after training has completed."""

    def end(self, session):
        raise Crash


def dropout(features, is_training):
    x = keras.layers.Dense(8, activation="relu")(features)
    x = keras.layers.Dropout(0.5)(x, training=is_training)
    return keras.layers.Dense(1)(x)


def batch_norm(features, is_training):
    x = keras.layers.Dense(8)(features)
    x = keras.layers.BatchNormalization()(x, training=is_training)
    x = keras.layers.GaussianNoise(0.1)(x, training=is_training)
    return keras.layers.Dense(1)(x)


MODELS = {
    "dropout": model_fn_of(dropout, lambda: keras.optimizers.Adam(0.01)),
    "batch norm": model_fn_of(
        batch_norm, lambda: keras.optimizers.SGD(0.01, momentum=0.9)
    ),
}


def shuffled(params):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).repeat()
    data = data.shuffle(30, seed=3)
    return data.batch(params["batch_size"], drop_remainder=True)


def numbered(params):
    """Batches that are read one by one, because tf.data cannot save their state."""
    spec = tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1))
    data = tf.data.Dataset.from_generator(
        lambda: repeated(X, Y)(params), output_signature=spec
    )
    return data.take(2 * STEPS)


def arrays(params):
    return X[: params["batch_size"]], Y[: params["batch_size"]]


INPUTS = {
    "tf.data": shuffled,
    "from_generator": numbered,
    "generator": repeated(X, Y),
    "arrays": arrays,
}


def new_estimator(model_dir, model="dropout", iterations=4, **settings):
    settings["config"] = {"save_checkpoints_steps": 1} | settings.get("config", {})
    return estimator_of(MODELS[model], model_dir, iterations=iterations, **settings)


def variables(estimator):
    names = estimator.get_variable_names()
    return dict(zip(names, estimator.get_variable_value(names), strict=True))


def crash_at(estimator, input_fn, step):
    with pytest.raises(Crash):
        estimator.train(input_fn, hooks=[CrashAt(step)], max_steps=STEPS)


def positions(model_dir):
    names = glob.glob(os.path.join(model_dir, "*.input.*.zip"))
    return sorted(int(n.split("-")[-1].split(".")[0]) for n in names)


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.tobytes() == second[name].tobytes(), name


@pytest.mark.rows(3)
@pytest.mark.parametrize(
    ("model", "source", "use_tpu", "iterations"),
    [
        ("dropout", "tf.data", False, 4),
        ("dropout", "generator", True, 5),
        ("batch norm", "tf.data", True, 6),
        ("batch norm", "from_generator", False, 6),
        ("batch norm", "arrays", False, 4),
    ],
)
def test_resumed_at_every_loop_is_bit_equal(
    model, source, use_tpu, iterations, tmp_path
):
    def new(name):
        return new_estimator(tmp_path / name, model, iterations, use_tpu=use_tpu)

    whole = new("whole").train(INPUTS[source], max_steps=STEPS)
    for step in range(iterations, STEPS, iterations):
        crash_at(new("parts"), INPUTS[source], step)
    parts = new("parts").train(INPUTS[source], max_steps=STEPS)
    assert_equal(variables(whole), variables(parts))
    assert STEPS not in positions(tmp_path / "parts")


def test_random_state_is_saved(tmp_path):
    estimator = new_estimator(tmp_path).train(arrays, max_steps=1)
    assert any("seed" in name for name in estimator.get_variable_names())


@pytest.mark.parametrize(
    ("source", "use_tpu"), each_once(["tf.data", "generator"], [False, True])
)
def test_resuming_on_other_cores(source, use_tpu, tmp_path):
    model_fn = model_fn_of(linear, lambda: keras.optimizers.Adam(0.01))

    def new(name, use_tpu):
        config = {"save_checkpoints_steps": 1}
        return estimator_of(model_fn, tmp_path / name, use_tpu=use_tpu, config=config)

    whole = new("whole", use_tpu).train(INPUTS[source], max_steps=STEPS)
    crash_at(new("parts", use_tpu), INPUTS[source], 4)
    parts = new("parts", not use_tpu).train(INPUTS[source], max_steps=STEPS)
    others = variables(parts)
    for name, value in variables(whole).items():
        np.testing.assert_allclose(value, others[name], rtol=1e-5, err_msg=name)


def seen_by(estimator, input_fn, **arguments):
    """Returns the first feature of each batch that a call reads."""
    seen = []

    def watched(params):
        for features, labels in input_fn(params):
            seen.append(features[0, 0])
            yield features, labels

    estimator.train(watched, **arguments)
    return seen


def test_completed_call_is_not_continued(tmp_path):
    estimator = new_estimator(tmp_path)
    for _ in range(2):
        seen = seen_by(estimator, repeated(X, Y), steps=8)
        assert seen[0] == X[0, 0]
        step = estimator.get_variable_value("global_step")
        assert int(step) not in positions(tmp_path)


@pytest.mark.parametrize("save_every", [1, 100])
def test_call_with_a_failed_end_hook_is_not_continued(save_every, tmp_path):
    config = {"save_checkpoints_steps": save_every}
    estimator = new_estimator(tmp_path, config=config)
    with pytest.raises(Crash):
        estimator.train(repeated(X, Y), hooks=[CrashInEnd()], steps=8)
    assert estimator.get_variable_value("global_step") == 8
    assert 8 not in positions(tmp_path)


def test_last_checkpoint_of_a_call_has_no_iterator_state(tmp_path):
    class Positions(kte.hooks.CheckpointSaverListener):
        def after_save(self, session, global_step):
            seen.append(positions(tmp_path))

    seen = []
    estimator = new_estimator(tmp_path, config={"save_checkpoints_steps": 9})
    estimator.train(repeated(X, Y), steps=8, saving_listeners=[Positions()])
    # The iterator state of the first checkpoint stays as long as the checkpoint.
    assert seen == [[0], [0]]
    assert positions(tmp_path) == [0]


def test_call_with_unsaved_last_steps_is_continued(tmp_path):
    whole = new_estimator(tmp_path / "whole")
    whole.train(repeated(X, Y), max_steps=STEPS)
    estimator = new_estimator(tmp_path / "parts")
    saver = kte.hooks.CheckpointSaverHook(tmp_path / "parts", save_steps=8)
    with pytest.raises(Crash):
        estimator.train(repeated(X, Y), hooks=[CrashInEnd(), saver], max_steps=STEPS)
    assert estimator.get_variable_value("global_step") == 8
    estimator.train(repeated(X, Y), max_steps=STEPS)
    assert_equal(variables(whole), variables(estimator))


def test_resuming_in_the_same_process_continues_the_input(tmp_path):
    whole = new_estimator(tmp_path / "whole")
    whole.train(repeated(X, Y), max_steps=STEPS)
    estimator = new_estimator(tmp_path / "parts")
    crash_at(estimator, repeated(X, Y), 8)
    estimator.train(repeated(X, Y), max_steps=STEPS)
    assert_equal(variables(whole), variables(estimator))


def test_input_restarts_if_requested(tmp_path, caplog):
    crash_at(new_estimator(tmp_path), repeated(X, Y), 4)
    config = {"resume_input": False}
    with caplog.at_level(logging.INFO):
        new_estimator(tmp_path, config=config).train(shuffled, max_steps=8)
    assert "input continues" not in caplog.text
    assert positions(tmp_path) == [0, 4]


def test_other_batch_size_restarts_the_input_with_a_warning(tmp_path, caplog):
    crash_at(new_estimator(tmp_path), repeated(X, Y), 4)
    seen = seen_by(new_estimator(tmp_path, batch=8), repeated(X, Y), steps=1)
    assert seen[0] == X[0, 0]
    assert "batches of 16 examples, now 8" in caplog.text


def test_shorter_input_restarts_with_a_warning(tmp_path, caplog):
    crash_at(new_estimator(tmp_path), repeated(X, Y), 8)

    def shorter(params):
        yield from [(X[:16], Y[:16])] * 3

    estimator = new_estimator(tmp_path).train(shorter)
    assert "it ends after 3 steps, but the earlier run had used 8" in caplog.text
    assert estimator.get_variable_value("global_step") == 11


def test_exhausted_input_restarts(tmp_path, caplog):
    def four(params):
        yield from [(X[:16], Y[:16])] * 4

    crash_at(new_estimator(tmp_path), four, 4)
    for expected in (4, 8):
        estimator = new_estimator(tmp_path).train(four)
        assert estimator.get_variable_value("global_step") == expected
    assert caplog.text.count("made no step") == 1


def test_iterator_states_are_deleted_with_their_checkpoints(tmp_path):
    config = {"keep_checkpoint_max": 2, "save_checkpoints_steps": 1}
    estimator = new_estimator(tmp_path, iterations=1, config=config)
    crash_at(estimator, repeated(X, Y), 11)
    left = positions(tmp_path)
    # The next call deletes the states of checkpoints that may be unfinished.
    assert {10, 11} <= set(left) and len(left) <= 4
    config["save_checkpoints_steps"] = 100
    new_estimator(tmp_path, config=config).train(repeated(X, Y), steps=4)
    assert positions(tmp_path) in ([10, 11], [11])


def test_corrupt_iterator_state_is_an_error(tmp_path):
    crash_at(new_estimator(tmp_path), repeated(X, Y), 4)
    (position,) = tmp_path.glob("model.ckpt-4.input.*.zip")
    position.write_bytes(b"no zip")
    with pytest.raises(ValueError, match="Delete it to read the input from"):
        new_estimator(tmp_path).train(repeated(X, Y), max_steps=STEPS)


def counted(count):
    """An input_fn that counts the requested batches."""

    def input_fn(params):
        for start in range(STEPS):
            count.append(start)
            rows = slice(5 * start, 5 * start + 16)
            yield X[rows], Y[rows]

    return input_fn


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (dropout, "has no variable"),
        (lambda x, _: keras.layers.Dense(1)(x[:, :2]), "Restore the layer's"),
    ],
)
def test_mismatched_model_is_reported_before_the_input_is_read(
    tmp_path, other, message
):
    config = {"save_checkpoints_steps": 4}
    estimator = estimator_of(model_fn_of(linear), tmp_path, config=config)
    crash_at(estimator, counted([]), 8)
    assert 8 in positions(tmp_path)
    count, another = [], estimator_of(model_fn_of(other), tmp_path)
    with pytest.raises(ValueError, match=message) as why:
        another.train(counted(count), steps=4)
    # At most one loop is read, although resuming skips eight steps.
    assert len(count) <= 4
    assert not getattr(why.value, "__notes__", None)
    # The right model continues, and no input is lost.
    count.clear()
    estimator_of(model_fn_of(linear), tmp_path).train(counted(count), steps=4)
    assert count == [*range(12)]


def test_shape_error_names_the_weight_before_its_slots(tmp_path):
    def network(units):
        return lambda x, _: keras.layers.Dense(1)(keras.layers.Dense(units)(x))

    x, y = regression_data()
    estimator_of(
        model_fn_of(network(4), lambda: keras.optimizers.Adam()), tmp_path
    ).train(repeated(x, y), steps=1)
    other = model_fn_of(network(5), lambda: keras.optimizers.Adam())
    with pytest.raises(ValueError, match="The variable 'dense"):
        estimator_of(other, tmp_path).train(repeated(x, y), steps=2)
