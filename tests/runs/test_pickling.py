"""Tests estimators that are pickled, copied, forked and displayed."""

import concurrent.futures
import contextlib
import copy
import functools
import multiprocessing
import os
import pickle
import re
import signal
import warnings

import cloudpickle
import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, linear, model_fn_of, regression_data

import keras_tpu_estimator as kte

X, Y = regression_data(32)


def model_fn(features, labels, mode, params):
    """A model_fn that pickle can import."""
    return model_fn_of(linear)(features, labels, mode, params)


def trained(model_fn, directory, use_tpu=False, **settings):
    estimator = estimator_of(model_fn, directory, use_tpu, **settings)
    return estimator.train(batches_of(X, Y), steps=2)


def pickled(estimator):
    return pickle.loads(pickle.dumps(estimator))


def with_cloudpickle(estimator):
    return pickle.loads(cloudpickle.dumps(estimator))


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy, with_cloudpickle])
@pytest.mark.parametrize("use_tpu", [False, True])
def test_copy_has_only_the_arguments(tmp_path, copied, use_tpu):
    estimator = trained(
        model_fn,
        tmp_path,
        use_tpu,
        params={"rates": [0.1]},
        config={"keep_checkpoint_max": 3},
    )
    expected = estimator.evaluate(batches_of(X, Y))
    other = copied(estimator)
    # A copy has neither values nor programs.
    assert vars(other._context).keys() < vars(estimator._context).keys()
    assert "runtime" not in vars(other._context)
    assert other.config == estimator.config
    assert (other.model_dir, other.params) == (str(tmp_path), {"rates": [0.1]})
    assert other._context.params is not estimator._context.params
    assert other.evaluate(batches_of(X, Y)) == expected
    other.train(batches_of(X, Y), steps=1)
    assert estimator.get_variable_value("global_step") == 3


def test_attributes_of_a_subclass_are_kept(tmp_path):
    estimator = Named(model_fn, str(tmp_path), use_tpu=False)
    assert pickled(estimator).name == copy.deepcopy(estimator).name == "mine"


class Named(kte.TPUEstimator):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, config=kte.RunConfig(), **kwargs)
        self.name = "mine"


def test_only_pickle_refuses_unnamed_functions(tmp_path):
    estimator = trained(model_fn_of(linear), tmp_path)
    message = "`model_fn` must be .* at the top level.*with cloudpickle"
    with pytest.raises(pickle.PicklingError, match=message):
        pickle.dumps(estimator)
    expected = estimator.evaluate(batches_of(X, Y))
    for copied in (copy.deepcopy, with_cloudpickle):
        assert copied(estimator).evaluate(batches_of(X, Y)) == expected


def test_callable_objects_are_pickled(tmp_path):
    estimator = trained(functools.partial(model_fn), tmp_path)
    assert pickled(estimator).latest_checkpoint().endswith("ckpt-2")


def keras_estimator(directory, rank=None):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    if rank is not None:
        model.layers[0].enable_lora(rank)
    model.compile("sgd", "mse")
    return kte.from_keras(
        model, directory, use_tpu=False, train_batch_size=8, eval_batch_size=8
    )


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy])
def test_estimators_of_keras_models_are_pickled(tmp_path, copied):
    estimator = keras_estimator(tmp_path).train(batches_of(X, Y), steps=2)
    expected = estimator.evaluate(batches_of(X, Y))
    assert copied(estimator).evaluate(batches_of(X, Y)) == expected


def test_models_that_keras_cannot_pickle_are_refused(tmp_path):
    estimator = keras_estimator(tmp_path, rank=2)
    with pytest.raises(pickle.PicklingError, match="LoRA.*Call from_keras in"):
        pickle.dumps(estimator)
    assert copy.deepcopy(estimator).model_dir == estimator.model_dir


CALLS = {
    "train": lambda e: e.train(batches_of(X, Y), steps=1),
    "evaluate": lambda e: e.evaluate(batches_of(X, Y)),
    "predict": lambda e: next(e.predict(batches_of(X))),
    "export": lambda e: e.export_saved_model(
        e.model_dir, kte.export.build_raw_serving_input_receiver_fn(X)
    ),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_fork_after_a_computation_raises_at_once(tmp_path, call):
    estimator = trained(model_fn_of(linear), tmp_path)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # Warnings of JAX and newer Python versions about forks.
        child = os.fork()
    if not child:
        signal.alarm(60)  # It would hang.
        with contextlib.suppress(BaseException):
            try:
                CALLS[call](estimator)
            except RuntimeError as error:
                os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        assert re.search("forked after .* had used JAX.*spawn", told.read())
    assert os.waitpid(child, 0)[1] == 0


def test_estimator_is_shown_as_a_table(tmp_path):
    estimator = trained(
        model_fn, tmp_path, params={"<rate>": 0.5}, log_step_count_steps=10
    )
    name, *rows = repr(estimator).splitlines()
    told = dict(row.split(maxsplit=1) for row in rows)
    assert name == "TPUEstimator"
    line = model_fn.__code__.co_firstlineno
    assert told["model_fn"] == f"model_fn, test_pickling.py:{line}"
    assert told["checkpoint"] == "model.ckpt-2"
    assert told["train_batch_size"] == told["predict_batch_size"] == "16"
    assert told["params"] == "{'<rate>': 0.5}"
    assert told["config"] == (
        "iterations_per_loop=4, tf_random_seed=7, save_summary_steps=None, "
        "log_step_count_steps=10"
    )
    table = estimator._repr_html_()
    assert "&lt;rate&gt;" in table and "<rate>" not in table
    assert table.count("<tr>") == len(rows)


def test_repr_is_short_and_needs_no_directory(tmp_path):
    estimator = estimator_of(
        model_fn_of(linear),
        tmp_path / "none",
        params={"table": np.zeros((50, 50)), "text": "x" * 1000},
    )
    told = repr(estimator)
    assert "checkpoint" in told and "none" in told
    assert max(map(len, told.splitlines())) < 300
    # The name and one line for each row.
    assert len(told.splitlines()) == 1 + estimator._repr_html_().count("<tr>")


def evaluated(estimator):
    """Evaluates in a separate process, which imports this module."""
    return os.getpid(), estimator.evaluate(batches_of(X, Y))


def test_spawned_process_evaluates(tmp_path):
    """macOS, Windows, and Python 3.14 on Linux spawn processes."""
    estimator = trained(model_fn, tmp_path)
    with concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn")
    ) as pool:
        process, result = pool.submit(evaluated, estimator).result()
    assert process != os.getpid()
    assert result == estimator.evaluate(batches_of(X, Y))
