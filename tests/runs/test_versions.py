"""Values say which they are, however a call has ended.

A checkpoint is taken for the values in memory only if it holds the same, also
after errors that are told while a run is ahead.
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
from keras_tpu_estimator.api.hooks.summary_saver import RecordedSummariesHook
from keras_tpu_estimator.engine.device import restoring
from keras_tpu_estimator.engine.device.device_loop import DeviceLoop
from keras_tpu_estimator.engine.inputs.pipeline import Infeed
from keras_tpu_estimator.files.formats.hdf5 import writer

X, Y = regression_data(examples=160)
EVALUATED = batches_of(X[:32], Y[:32])
# Steps of a run and between checkpoints, and where it goes wrong.
RUN, SAVED, AHEAD, LAST = 5, 10, 15, 25


class Told(Exception):
    """An error that ends a training while its third run is ahead."""


class Host:
    """A host_call that may fail."""

    def __init__(self):
        self.fails = False

    def __call__(self, global_step, loss):
        del loss
        if self.fails and global_step[0] >= SAVED - 1:
            raise Told


def mean_of(features):
    mean = keras.metrics.Mean()
    mean.update_state(features)
    return {"mean": mean}


def model_fn_with(host):
    """A linear model whose host_call receives every step."""

    def model_fn(features, labels, mode, params):
        loss = squared_error(linear(features, mode == "train"), labels)
        if mode != kte.ModeKeys.TRAIN:
            return kte.TPUEstimatorSpec(mode, loss=loss)
        adam = kte.CrossShardOptimizer(keras.optimizers.Adam(0.01))
        # Reports wait for what is counted on the host.
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
    """The input is always there, so that runs begin as early as they may."""
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


class At(kte.hooks.SessionRunHook):
    """Calls something after the run that ends at a step."""

    acts_last = True

    def __init__(self, step, call):
        self.step, self.call = step, call

    def after_run(self, run_context, run_values):
        if run_context.session.run("global_step") == self.step:
            self.call(run_context.session)


def fail(*_):
    raise Told


def in_host_call(estimator, host, monkeypatch):
    host.fails = True
    return Told, {}


def at_second_signal(estimator, host, monkeypatch):
    """The user has lost patience with the run that the host waits for."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    wait, awaited = jax.block_until_ready, []

    def interrupted(losses):
        wait(losses)
        if np.shape(losses) != (RUN,):
            return
        # The save waits for its run first, so the next run is interrupted.
        if all(losses is not each for each in awaited):
            awaited.append(losses)
        if len(awaited) == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(jax, "block_until_ready", interrupted)
    return KeyboardInterrupt, {}


def in_own_hook(estimator, host, monkeypatch):
    """The event file cannot be written."""
    write = RecordedSummariesHook.run_is_made

    def written(hook, session):
        if session.run("global_step") == SAVED:
            raise Told
        write(hook, session)

    monkeypatch.setattr(RecordedSummariesHook, "run_is_made", written)
    return Told, {}


def in_hook(estimator, host, monkeypatch):
    return Told, {"hooks": [At(AHEAD, fail)]}


def in_callback(estimator, host, monkeypatch):
    def at_end(batch, logs):
        if batch + 1 == AHEAD:
            raise Told

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=at_end)
    hook = kte.hooks.CallbackHook(callback, steps_per_epoch=10 * LAST)
    return Told, {"hooks": [hook]}


def in_input(estimator, host, monkeypatch):
    def input_fn(params):
        batches = repeated(X, Y)(params)
        for _ in range(AHEAD + 2):
            yield next(batches)
        raise Told

    return Told, {"input_fn": input_fn}


def in_writer(estimator, host, monkeypatch):
    write = writer.write_file

    def written(path, *others):
        if path.endswith("-20.h5"):
            raise Told
        return write(path, *others)

    monkeypatch.setattr(writer, "write_file", written)
    return Told, {}


def in_memory(estimator, host, monkeypatch):
    """An evaluation of the values of training fails."""

    def evaluate(session):
        session.evaluate(estimator, EVALUATED, hooks=[At(SAVED, fail)])
        session.evaluate(estimator, EVALUATED, hooks=[At(AHEAD, fail)])

    return Told, {"hooks": [At(AHEAD, evaluate)]}


def after_another(estimator, host, monkeypatch):
    """A hook has evaluated a checkpoint, whose values are other ones."""

    def evaluate(session):
        assert estimator.evaluate(EVALUATED)["global_step"] == SAVED
        raise Told

    return Told, {"hooks": [At(AHEAD, evaluate)]}


def when_used_up(estimator, host, monkeypatch):
    """The third run has begun, and nothing is known of it."""
    run, runs = DeviceLoop.run, []

    def interrupted(self, step, *args):
        made = run(self, step, *args)
        runs.extend([step] if step.mode == "train" else [])
        if len(runs) == 3:
            raise Told
        return made

    monkeypatch.setattr(DeviceLoop, "run", interrupted)
    return Told, {}


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
            when_used_up,
        ],
        [False, True],
    ),
]


def train_to_its_end(estimator, host, monkeypatch, end):
    """Trains until it goes wrong; then everything works again."""
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
def test_a_call_that_fails_gives_no_values_a_wrong_name(
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

    # And it continues as if nothing had been.
    estimator.train(repeated(X, Y), max_steps=LAST)
    whole = new_estimator(tmp_path / "whole", host, use_tpu)
    whole.train(repeated(X, Y), max_steps=LAST)
    expected = state_of(whole)
    for name, value in state_of(estimator).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_train_and_evaluate_goes_on_after_an_error(host, monkeypatch, tmp_path):
    def train_and_evaluate(directory):
        return kte.train_and_evaluate(
            new_estimator(tmp_path / directory, host),
            kte.TrainSpec(repeated(X, Y), max_steps=LAST),
            kte.EvalSpec(EVALUATED, steps=None, throttle_secs=0),
        )[0]

    host.fails = True
    with pytest.raises(Told):
        train_and_evaluate("parts")
    host.fails = False
    assert train_and_evaluate("parts") == train_and_evaluate("whole")
    found = json.loads((tmp_path / "parts" / "best_checkpoint.json").read_text())
    assert found["checkpoint"] == "model.ckpt-25"


def test_without_an_error_no_checkpoint_is_read_again(host, monkeypatch, tmp_path):
    estimator = new_estimator(tmp_path, host)
    estimator.train(repeated(X, Y), max_steps=LAST)
    monkeypatch.setattr(restoring, "load_checkpoint", fail)
    assert estimator.evaluate(EVALUATED)["global_step"] == LAST
    with pytest.raises(Told):
        new_estimator(tmp_path, host).evaluate(EVALUATED)


def test_a_checkpoint_that_is_soon_gone_holds_nothing(host, tmp_path):
    class Remove(kte.hooks.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            if global_step_value == LAST:
                (tmp_path / "model.ckpt-25.h5").unlink()

    estimator = new_estimator(tmp_path, host)
    estimator.train(repeated(X, Y), max_steps=LAST, saving_listeners=[Remove()])
    assert estimator.evaluate(EVALUATED)["global_step"] == 20


def test_what_is_edited_after_the_last_save_is_read_again(host, tmp_path):
    class Edits(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            self.model.variables[1].assign_add([100.0])

    class Late(kte.hooks.CallbackHook):
        """Is told of the end when the last checkpoint has been written."""

        def close(self, session):
            pass

        def end(self, session):
            super().close(session)

    estimator = new_estimator(tmp_path, host)
    estimator.train(repeated(X, Y), hooks=[Late(Edits())], max_steps=SAVED)
    saved = new_estimator(tmp_path, host).evaluate(EVALUATED, name="new")
    assert estimator.evaluate(EVALUATED) == saved


def test_a_learning_rate_that_was_set_is_saved_whatever_is_evaluated(host, tmp_path):
    class Slower(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch + 1 == RUN:
                self.model.optimizer.learning_rate = 0.001

    estimator = new_estimator(tmp_path, host)
    hooks = [Slower(), At(RUN, lambda _: estimator.evaluate(EVALUATED))]
    estimator.train(repeated(X, Y), hooks=hooks, max_steps=SAVED)
    rates = [n for n in estimator.get_variable_names() if "learning_rate" in n]
    assert estimator.get_variable_value(rates) == [pytest.approx(0.001)]
