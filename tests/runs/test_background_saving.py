"""Checkpoints that are written while training continues."""

import contextlib
import logging
import os
import threading

import jax
import numpy as np
import pytest
from helpers import (
    batches_of,
    estimator_of,
    linear,
    model_fn_of,
    open_when_joined,
    regression_data,
    repeated,
)

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.api.hooks.session_run_hook import LoopHook
from keras_tpu_estimator.engine.device.host_values import on_host
from keras_tpu_estimator.files.directory.location import wait_for
from keras_tpu_estimator.files.formats.hdf5 import writer
from keras_tpu_estimator.runs import saver
from keras_tpu_estimator.runs.position_saver import PositionSaver

X, Y = regression_data()


@pytest.fixture
def estimator(tmp_path):
    return estimator_of(
        model_fn_of(linear),
        tmp_path,
        iterations=1,
        config={"save_checkpoints_steps": 2},
    )


class AtStep(LoopHook):
    """Calls something when a step has been reached."""

    acts_last = True

    def __init__(self, step, call):
        self.step, self.call = step, call

    def after_run(self, run_context, run_values):
        if run_context.session.run("global_step") == self.step:
            self.call(run_context.session)


@pytest.fixture
def held(monkeypatch):
    """An event that the writer of step 2 waits for."""
    gate = threading.Event()
    original = writer.write_file

    def write(path, *others):
        if path.endswith("-2.h5"):
            assert gate.wait(60)
        return original(path, *others)

    monkeypatch.setattr(writer, "write_file", write)
    yield gate
    gate.set()


def test_training_continues_while_a_checkpoint_is_written(estimator, held, tmp_path):
    seen = []

    def look(_):
        seen.append(os.path.exists(tmp_path / "model.ckpt-2.h5"))
        held.set()

    estimator.train(repeated(X, Y), hooks=[AtStep(3, look)], steps=5)

    assert seen == [False]
    assert checkpoints.step_of(tmp_path / "model.ckpt-2") == 2
    assert checkpoints.step_of(tmp_path) == 5


def test_checkpoint_has_the_values_at_its_step(estimator, held, tmp_path):
    values = {}

    def note(session):
        values["dense/kernel"] = session.run("dense/kernel").copy()

    hooks = [AtStep(2, note), AtStep(3, lambda _: held.set())]
    estimator.train(repeated(X, Y), hooks=hooks, steps=3)

    np.testing.assert_array_equal(
        kte.load_variable(tmp_path / "model.ckpt-2", "dense/kernel"),
        values["dense/kernel"],
    )
    assert np.any(kte.load_variable(tmp_path, "dense/kernel") != values["dense/kernel"])


def test_snapshot_shares_no_memory_with_devices():
    values = {"a": jax.numpy.ones(1000), "b": np.ones(1000)}
    on_devices = {path: np.asarray(value) for path, value in values.items()}
    snapshot = on_host(values)
    for path, value in snapshot.items():
        np.testing.assert_array_equal(value, on_devices[path])
        assert not np.shares_memory(value, on_devices[path])


def test_latest_checkpoint_waits_for_the_writer(estimator, held, tmp_path, monkeypatch):
    seen = []

    def look(_):
        open_when_joined(monkeypatch, held, "checkpoint-writer")
        seen.append(estimator.latest_checkpoint())

    estimator.train(repeated(X, Y), hooks=[AtStep(3, look)], steps=3)
    assert seen == [str(tmp_path / "model.ckpt-2")]


def test_hook_may_evaluate_an_unfinished_checkpoint(estimator, tmp_path):
    steps = []

    def evaluate(_):
        result = estimator.evaluate(batches_of(X, Y))
        steps.append(int(result["global_step"]))

    estimator.train(repeated(X, Y), hooks=[AtStep(3, evaluate)], steps=4)
    assert steps == [2]


def test_listeners_find_the_checkpoint_on_disk(estimator, tmp_path):
    class Listener(kte.hooks.CheckpointSaverListener):
        steps = []

        def after_save(self, session, global_step_value):
            assert not session._saver._writer.is_busy
            path = tmp_path / f"model.ckpt-{global_step_value}"
            self.steps.append(checkpoints.step_of(path))

    estimator.train(repeated(X, Y), steps=5, saving_listeners=[Listener()])
    assert Listener.steps == [0, 2, 4, 5]


def test_hook_finds_the_checkpoint_that_it_saved(estimator, tmp_path):
    def save(session):
        session.save_checkpoint(tmp_path / "copies")
        assert os.listdir(tmp_path / "copies")

    estimator.train(repeated(X, Y), hooks=[AtStep(3, save)], steps=4)
    assert checkpoints.step_of(tmp_path / "copies") == 3


@pytest.fixture
def full_disk(monkeypatch):
    """An event that makes writing fail, except for the first step."""
    gate = threading.Event()
    gate.set()
    original = writer.write_file

    def write(path, *others):
        if not path.endswith("-0.h5"):
            assert gate.wait(60)
            raise OSError(28, "No space left on device")
        return original(path, *others)

    monkeypatch.setattr(writer, "write_file", write)
    return gate


def test_writer_error_is_raised_before_the_next_checkpoint(
    estimator, full_disk, tmp_path
):
    steps = []
    hooks = [
        AtStep(2, lambda _: wait_for(tmp_path)),
        AtStep(3, steps.append),
    ]
    with pytest.raises(OSError, match="No space left"):
        estimator.train(repeated(X, Y), hooks=hooks, steps=9)
    assert not steps


@pytest.mark.parametrize("steps", [1, 2, 9])
def test_writer_error_stops_training(estimator, full_disk, tmp_path, steps):
    seen = []
    hooks = [AtStep(5, seen.append)]
    with pytest.raises(OSError, match="No space left"):
        estimator.train(repeated(X, Y), hooks=hooks, steps=steps)
    assert not seen
    assert estimator.latest_checkpoint() == str(tmp_path / "model.ckpt-0")
    # No checkpoint has the values in memory, so the last one is read.
    assert estimator.evaluate(batches_of(X, Y))["global_step"] == 0


def test_training_error_is_raised_and_writer_error_logged(
    estimator, full_disk, caplog, monkeypatch
):
    def fail(_):
        open_when_joined(monkeypatch, full_disk, "checkpoint-writer")
        raise RuntimeError("training failed")

    full_disk.clear()
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(RuntimeError, match="training failed"),
    ):
        estimator.train(repeated(X, Y), hooks=[AtStep(2, fail)], steps=9)
    assert "The last checkpoint could not be written." in caplog.text
    assert "No space left" in caplog.text


def test_training_error_waits_for_the_writer(estimator, held, tmp_path, monkeypatch):
    def fail(_):
        open_when_joined(monkeypatch, held, "checkpoint-writer")
        raise RuntimeError("training failed")

    with pytest.raises(RuntimeError, match="training failed"):
        estimator.train(repeated(X, Y), hooks=[AtStep(3, fail)], steps=9)
    assert checkpoints.step_of(tmp_path / "model.ckpt-2") == 2


def no_thread(monkeypatch):
    start = threading.Thread.start

    def fail(thread):
        if thread.name == "checkpoint-writer":
            raise RuntimeError("told: can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)


def no_position(monkeypatch):
    def fail(*_):
        raise RuntimeError("told: no position")

    monkeypatch.setattr(PositionSaver, "beside", fail)


def no_begun_save(monkeypatch):
    def fail(**_):
        raise RuntimeError("told: no begun save")

    monkeypatch.setattr(saver, "BegunSave", fail)


def no_list(monkeypatch):
    def fail(*_):
        raise RuntimeError("told: no list of checkpoints")

    monkeypatch.setattr(checkpoints.Retention, "split", fail)


@pytest.mark.parametrize("fails", [no_thread, no_position, no_begun_save, no_list])
@pytest.mark.parametrize("is_caught", [False, True])
def test_failed_save_is_no_checkpoint(
    estimator, monkeypatch, tmp_path, fails, is_caught
):
    told = []

    def save(session):
        wait_for(tmp_path)
        with monkeypatch.context() as patched:
            fails(patched)
            with pytest.raises(RuntimeError, match="told"):
                session.save_checkpoint(tmp_path)
        told.append(session.saved_step(tmp_path))
        told.append(estimator.latest_checkpoint())
        if not is_caught:
            raise ValueError("the end")

    hooks = [AtStep(3, save)]
    with (
        contextlib.nullcontext()
        if is_caught
        else pytest.raises(ValueError, match="the end")
    ):
        estimator.train(repeated(X, Y), hooks=hooks, steps=4)
    assert told == [2, str(tmp_path / "model.ckpt-2")]
    step = 4 if is_caught else 2
    assert estimator.latest_checkpoint() == str(tmp_path / f"model.ckpt-{step}")
    assert estimator.evaluate(batches_of(X, Y))["global_step"] == step


def test_no_checkpoint_is_written_after_a_nan(estimator, tmp_path):
    def save(session):
        session.save_checkpoint(tmp_path / "copies")

    bad = np.where(np.arange(64)[:, None] < 16, X, np.nan)
    with pytest.raises(kte.hooks.NanLossDuringTrainingError):
        estimator.train(repeated(bad, Y), hooks=[AtStep(2, save)], steps=4)
    assert not os.path.exists(tmp_path / "copies")
