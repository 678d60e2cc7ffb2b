"""Tests that values have the right version after any end of a call.

A checkpoint stands for the values in memory only if it holds the same values. This also
holds after errors that are raised while the next run has begun.
"""

import json
import signal
import sys

import jax
import keras
import numpy as np
import pytest
from helpers import (
    batches_of,
    each_once,
    estimator_of,
    linear,
    regression_data,
    repeated,
    squared_error,
)

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.api.hooks.session_run_hook import LoopHook
from keras_tpu_estimator.api.hooks.summary_saver import RecordedSummariesHook
from keras_tpu_estimator.engine.device import restoring
from keras_tpu_estimator.engine.device.device_loop import DeviceLoop
from keras_tpu_estimator.engine.inputs.pipeline import Infeed
from keras_tpu_estimator.files.formats.hdf5 import writer

X, Y = regression_data(examples=160)
EVALUATED = batches_of(X[:32], Y[:32])
# Steps of a run, steps between checkpoints, and the step that fails.
RUN, SAVED, AHEAD, LAST = 5, 10, 15, 25


class FailureError(Exception):
    """An error that ends training after its third run has begun."""


class Host:
    """A host_call that may fail."""

    def __init__(self):
        self.fails = False

    def __call__(self, global_step, loss):
        del loss
        if self.fails and global_step[0] >= SAVED - 1:
            raise FailureError


def mean_of(features):
    mean = keras.metrics.Mean()
    mean.update_state(features)
    return {"mean": mean}


def model_fn_with(host):
    """Returns a linear model whose host_call receives every step."""

    def model_fn(features, labels, mode, params):
        loss = squared_error(linear(features, mode == "train"), labels)
        if mode != kte.ModeKeys.TRAIN:
            return kte.TPUEstimatorSpec(mode, loss=loss)
        adam = kte.CrossShardOptimizer(keras.optimizers.Adam(0.01))
        # Reports wait for counts on the host.
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=adam.minimize(loss),
            host_call=(host, [kte.get_global_step()[None], loss[None]]),
            train_metrics=(mean_of, [features]),
        )

    return model_fn


@pytest.fixture(autouse=True)
def always_ahead(monkeypatch):
    """Makes all input ready, so that runs begin as early as possible."""
    monkeypatch.setattr(Infeed, "take_ready", lambda self: next(self, None))


@pytest.fixture
def host():
    return Host()


def new_estimator(model_dir, host, use_tpu=False, **config):
    config = {
        "save_checkpoints_steps": SAVED,
        "keep_best": checkpoints.KeepBest(),
    } | config
    return estimator_of(
        model_fn_with(host),
        model_dir,
        use_tpu,
        iterations=RUN,
        save_summary_steps=RUN,
        log_step_count_steps=RUN,
        config=config,
    )


class At(LoopHook):
    """Calls something after the run that ends at a step."""

    acts_last = True

    def __init__(self, step, call):
        self.step, self.call = step, call

    def after_run(self, run_context, run_values):
        if run_context.session.run("global_step") == self.step:
            self.call(run_context.session)


def fail(*_):
    raise FailureError


def in_host_call(estimator, host, monkeypatch):
    host.fails = True
    return FailureError, {}


def at_second_signal(estimator, host, monkeypatch):
    """The user sends a second signal while the host waits for the run."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    wait, awaited = jax.block_until_ready, []

    def interrupted(losses):
        wait(losses)
        if np.shape(losses) != (RUN,):
            return
        # A save waits for its own run, so the next run is interrupted.
        if all(losses is not each for each in awaited):
            awaited.append(losses)
        if len(awaited) == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(jax, "block_until_ready", interrupted)
    return KeyboardInterrupt, {}


def in_own_hook(estimator, host, monkeypatch):
    """The package's hook cannot write the event file."""
    write = RecordedSummariesHook.run_completed

    def written(hook, session):
        if session.run("global_step") == SAVED:
            raise FailureError
        write(hook, session)

    monkeypatch.setattr(RecordedSummariesHook, "run_completed", written)
    return FailureError, {}


def in_hook(estimator, host, monkeypatch):
    return FailureError, {"hooks": [At(AHEAD, fail)]}


def in_callback(estimator, host, monkeypatch):
    def at_end(batch, logs):
        if batch + 1 == AHEAD:
            raise FailureError

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=at_end)
    hook = kte.hooks.CallbackHook(callback, steps_per_epoch=10 * LAST)
    return FailureError, {"hooks": [hook]}


def in_input(estimator, host, monkeypatch):
    def input_fn(params):
        batches = repeated(X, Y)(params)
        for _ in range(AHEAD + 2):
            yield next(batches)
        raise FailureError

    return FailureError, {"input_fn": input_fn}


def in_writer(estimator, host, monkeypatch):
    write = writer.write_file

    def written(path, *others):
        if path.endswith("-20.h5"):
            raise FailureError
        return write(path, *others)

    monkeypatch.setattr(writer, "write_file", written)
    return FailureError, {}


def in_memory(estimator, host, monkeypatch):
    """An evaluation of the training values fails."""

    def evaluate(session):
        session.evaluate(estimator, EVALUATED, hooks=[At(SAVED, fail)])
        session.evaluate(estimator, EVALUATED, hooks=[At(AHEAD, fail)])

    return FailureError, {"hooks": [At(AHEAD, evaluate)]}


def after_another(estimator, host, monkeypatch):
    """A hook has evaluated a checkpoint with other values."""

    def evaluate(session):
        assert estimator.evaluate(EVALUATED)["global_step"] == SAVED
        raise FailureError

    return FailureError, {"hooks": [At(AHEAD, evaluate)]}


def after_donation(estimator, host, monkeypatch):
    """The third run has begun and donated the values."""
    run, runs = DeviceLoop.run, []

    def interrupted(self, step, *args):
        made = run(self, step, *args)
        runs.extend([step] if step.mode == "train" else [])
        if len(runs) == 3:
            raise FailureError
        return made

    monkeypatch.setattr(DeviceLoop, "run", interrupted)
    return FailureError, {}


WHILE_AHEAD = [in_host_call, at_second_signal, in_own_hook]
ENDS = [
    *((end, False) for end in WHILE_AHEAD),
    *each_once(
        [
            in_hook,
            in_callback,
            in_input,
            in_writer,
            in_memory,
            after_another,
            after_donation,
        ],
        [False, True],
    ),
]


def train_to_its_end(estimator, host, monkeypatch, end):
    """Trains until the failure, after which everything works again."""
    with monkeypatch.context() as patched:
        error, arguments = end(estimator, host, patched)
        arguments = {"input_fn": repeated(X, Y)} | arguments
        with pytest.raises(error):
            estimator.train(max_steps=LAST, **arguments)
    host.fails = False


def state_of(estimator):
    names = estimator.get_variable_names()
    return dict(zip(names, estimator.get_variable_value(names), strict=True))


@pytest.mark.rows(6)
@pytest.mark.parametrize(("end", "use_tpu"), ENDS)
def test_failed_call_leaves_the_right_version(
    end, use_tpu, host, monkeypatch, tmp_path
):
    estimator = new_estimator(tmp_path / "own", host, use_tpu)
    train_to_its_end(estimator, host, monkeypatch, end)
    assert estimator.latest_checkpoint().endswith("model.ckpt-10")
    fresh = new_estimator(tmp_path / "own", host, use_tpu)
    saved = fresh.evaluate(EVALUATED, name="new")
    result = estimator.evaluate(EVALUATED)
    assert result == saved
    assert result["global_step"] == SAVED
    best = json.loads((tmp_path / "own" / "best_checkpoint.json").read_text())
    assert best["checkpoint"] == "model.ckpt-10"
    assert best["value"] == saved["loss"]

    # Training continues without a difference.
    estimator.train(repeated(X, Y), max_steps=LAST)
    whole = new_estimator(tmp_path / "whole", host, use_tpu)
    whole.train(repeated(X, Y), max_steps=LAST)
    expected = state_of(whole)
    for name, value in state_of(estimator).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_train_and_evaluate_continues_after_an_error(host, monkeypatch, tmp_path):
    def train_and_evaluate(directory):
        return kte.train_and_evaluate(
            new_estimator(tmp_path / directory, host),
            kte.TrainSpec(repeated(X, Y), max_steps=LAST),
            kte.EvalSpec(EVALUATED, steps=None, throttle_secs=0),
        )[0]

    host.fails = True
    with pytest.raises(FailureError):
        train_and_evaluate("parts")
    host.fails = False
    assert train_and_evaluate("parts") == train_and_evaluate("whole")
    found = json.loads((tmp_path / "parts" / "best_checkpoint.json").read_text())
    assert found["checkpoint"] == "model.ckpt-25"


def test_checkpoints_are_not_reread_without_an_error(host, monkeypatch, tmp_path):
    estimator = new_estimator(tmp_path, host)
    estimator.train(repeated(X, Y), max_steps=LAST)
    monkeypatch.setattr(restoring, "load_checkpoint", fail)
    assert estimator.evaluate(EVALUATED)["global_step"] == LAST
    with pytest.raises(FailureError):
        new_estimator(tmp_path, host).evaluate(EVALUATED)


def test_deleted_checkpoint_falls_back_to_the_previous_one(host, tmp_path):
    class Remove(kte.hooks.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            if global_step_value == LAST:
                (tmp_path / "model.ckpt-25.h5").unlink()

    estimator = new_estimator(tmp_path, host)
    estimator.train(repeated(X, Y), max_steps=LAST, saving_listeners=[Remove()])
    assert estimator.evaluate(EVALUATED)["global_step"] == 20


def test_values_edited_after_the_last_save_are_reread(host, tmp_path):
    class Edits(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            self.model.variables[1].assign_add([100.0])

    class Late(kte.hooks.CallbackHook):
        """A hook that ends after the last checkpoint has been written."""

        def close(self, session):
            pass

        def end(self, session):
            super().close(session)

    estimator = new_estimator(tmp_path, host)
    estimator.train(repeated(X, Y), hooks=[Late(Edits())], max_steps=SAVED)
    saved = new_estimator(tmp_path, host).evaluate(EVALUATED, name="new")
    assert estimator.evaluate(EVALUATED) == saved


def test_changed_learning_rate_is_saved_despite_evaluations(host, tmp_path):
    class Slower(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch + 1 == RUN:
                self.model.optimizer.learning_rate = 0.001

    estimator = new_estimator(tmp_path, host)
    hooks = [Slower(), At(RUN, lambda _: estimator.evaluate(EVALUATED))]
    estimator.train(repeated(X, Y), hooks=hooks, max_steps=SAVED)
    rates = [n for n in estimator.get_variable_names() if "learning_rate" in n]
    assert estimator.get_variable_value(rates) == [pytest.approx(0.001)]
