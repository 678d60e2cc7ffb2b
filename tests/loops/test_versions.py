"""Values say which they are, whatever ends a call while a run is ahead."""

import json
import signal
import sys

import jax
import keras
import numpy as np
import pytest
from helpers import batches_of
from helpers import estimator_of
from helpers import linear
from helpers import regression_data
from helpers import repeated
from helpers import squared_error

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.hooks.recorded_summaries import RecordedSummariesHook
from keras_tpu_estimator.inputs.infeed import Infeed

X, Y = regression_data(examples=160)
EVALUATED = batches_of(X[:32], Y[:32])
LOOP, SAVED, AHEAD, LAST = 5, 10, 15, 25


class Told(Exception):
    """What ends a training while its third run is ahead."""


class Faults:
    """What goes wrong, once: after it, everything works."""

    def __init__(self):
        self.host_call = False

    def call_host(self, global_step, loss):
        """Fails from step 9 on."""
        del loss
        if self.host_call and global_step[0] >= SAVED - 1:
            raise Told


def model_fn_with(faults):
    """A linear model whose host is told of every step."""

    def model_fn(features, labels, mode, params):
        y = linear(features, mode == "train")
        loss = squared_error(y, labels)
        if mode != kte.ModeKeys.TRAIN:
            return kte.TPUEstimatorSpec(mode, loss=loss)
        sgd = kte.CrossShardOptimizer(keras.optimizers.SGD(0.01))
        shown = [kte.get_global_step()[None], loss[None]]
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=sgd.minimize(loss),
            host_call=(faults.call_host, shown),
            train_metrics=(mean_of, [features]),
        )

    return model_fn


def mean_of(features):
    mean = keras.metrics.Mean()
    mean.update_state(features)
    return {"mean": mean}


@pytest.fixture(autouse=True)
def always_ahead(monkeypatch):
    """The input is always there, so that runs begin as early as they may."""
    monkeypatch.setattr(Infeed, "take_ready", lambda self: next(self, None))


@pytest.fixture
def faults():
    return Faults()


def new_estimator(model_dir, faults, use_tpu=False):
    return estimator_of(
        model_fn_with(faults),
        model_dir,
        use_tpu,
        iterations=LOOP,
        save_summary_steps=LOOP,
        log_step_count_steps=LOOP,
        config={
            "save_checkpoints_steps": SAVED,
            "keep_best": checkpoints.KeepBest(),
        },
    )


def in_host_call(monkeypatch, faults):
    faults.host_call = True
    return Told


def at_second_signal(monkeypatch, faults):
    """The user has lost patience with the run that the host waits for."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    wait, waits = jax.block_until_ready, []

    def interrupted(losses):
        wait(losses)
        if isinstance(losses, jax.Array) and losses.shape == (LOOP,):
            waits.append(losses)
            # Each run is awaited twice: before the next, and when that is told.
            if len({id(each) for each in waits}) == 2:
                monkeypatch.setattr(jax, "block_until_ready", wait)
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(jax, "block_until_ready", interrupted)
    return KeyboardInterrupt


def in_hook(monkeypatch, faults):
    write = RecordedSummariesHook.run_is_made

    def fail(hook, session):
        if session.run("global_step") == SAVED:
            monkeypatch.setattr(RecordedSummariesHook, "run_is_made", write)
            raise Told
        write(hook, session)

    monkeypatch.setattr(RecordedSummariesHook, "run_is_made", fail)
    return Told


ENDS = [in_host_call, at_second_signal, in_hook]


@pytest.mark.parametrize("end", ENDS)
def test_what_ends_a_call_while_a_run_is_ahead_mislabels_nothing(
    end, faults, monkeypatch, tmp_path
):
    estimator = new_estimator(tmp_path, faults)
    with monkeypatch.context() as patched:
        with pytest.raises(end(patched, faults)):
            estimator.train(repeated(X, Y), max_steps=LAST)
    faults.host_call = False
    assert estimator.latest_checkpoint() == str(tmp_path / "model.ckpt-10")
    saved = new_estimator(tmp_path, faults).evaluate(EVALUATED, name="new")
    result = estimator.evaluate(EVALUATED)
    assert result == saved
    assert result["global_step"] == SAVED
    best = json.loads((tmp_path / "best_checkpoint.json").read_text())
    assert best["checkpoint"] == "model.ckpt-10"
    assert best["value"] == saved["loss"]


def state_of(estimator):
    names = estimator.get_variable_names()
    return dict(zip(names, estimator.get_variable_value(names), strict=True))


@pytest.mark.parametrize("end", ENDS)
def test_training_goes_on_from_the_checkpoint_then(
    end, faults, monkeypatch, tmp_path
):
    whole = new_estimator(tmp_path / "whole", Faults())
    whole.train(repeated(X, Y), max_steps=LAST)
    parts = new_estimator(tmp_path / "parts", faults)
    with monkeypatch.context() as patched:
        with pytest.raises(end(patched, faults)):
            parts.train(repeated(X, Y), max_steps=LAST)
    faults.host_call = False
    parts.train(repeated(X, Y), max_steps=LAST)
    expected = state_of(whole)
    for name, value in state_of(parts).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
