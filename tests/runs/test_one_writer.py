"""Tests that one training at a time writes into a directory."""

import contextlib
import gc
import weakref

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

from keras_tpu_estimator.runs import training

X, Y = regression_data()


def test_successor_continues_from_the_last_save(tmp_path, monkeypatch):
    """The predecessor saves once more before it releases the lock."""
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


@pytest.mark.parametrize("use_tpu", [False, True])
def test_data_is_released_after_a_call(tmp_path, use_tpu):
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
