"""Who writes into a directory, and what a training starts from."""

import contextlib
import gc
import json
import os
import weakref

import numpy as np
import pytest
from helpers import batches_of
from helpers import estimator_of
from helpers import linear
from helpers import model_fn_of
from helpers import regression_data
from helpers import repeated

import keras_tpu_estimator as kte
from keras_tpu_estimator.loops import training

X, Y = regression_data()
CLUSTER = {"chief": ["one:1"], "worker": ["two:1"], "evaluator": ["three:1"]}


def test_a_successor_goes_on_from_the_last_save(tmp_path, monkeypatch):
    """The predecessor saves once more before it lets the lock go."""
    predecessor = estimator_of(model_fn_of(linear), tmp_path)
    predecessor.train(repeated(X, Y), steps=4)

    @contextlib.contextmanager
    def waiting(directory):
        with monkeypatch.context() as patch:
            patch.setattr(training, "only_training", contextlib.nullcontext)
            predecessor.train(repeated(X, Y), steps=4)
        yield

    monkeypatch.setattr(training, "only_training", waiting)
    successor = estimator_of(model_fn_of(linear), tmp_path)
    successor.train(repeated(X, Y), max_steps=9)
    assert successor.get_variable_value("global_step") == 9


@pytest.mark.parametrize("own_hook", [False, True])
def test_a_worker_writes_nothing(tmp_path, monkeypatch, own_hook):
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": task})
    )
    heard = []

    class Listener(kte.hooks.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            heard.append(global_step_value)

    directory = tmp_path / "run"
    estimator = estimator_of(
        model_fn_of(linear), directory, save_summary_steps=1
    )
    assert not estimator.config.is_chief
    hooks = []
    if own_hook:
        hooks.append(kte.hooks.CheckpointSaverHook(directory, save_steps=1))
    estimator.train(
        repeated(X, Y), hooks=hooks, steps=4, saving_listeners=[Listener()]
    )
    assert not heard
    assert not directory.exists() or os.listdir(directory) == []


@pytest.mark.parametrize("use_tpu", [False, True])
def test_no_data_are_kept_after_a_call(tmp_path, use_tpu):
    data = []

    def input_fn(params):
        x = np.ones((params["batch_size"], 3), "float32")
        data.append(weakref.ref(x))
        return x, x[:, :1] + 1

    estimator = estimator_of(model_fn_of(linear), tmp_path, use_tpu=use_tpu)
    estimator.train(input_fn, steps=8)
    estimator.evaluate(input_fn, steps=2)
    next(estimator.predict(input_fn))
    estimator.evaluate(batches_of(X, Y))
    gc.collect()
    assert [each() is None for each in data] == [True] * 3
