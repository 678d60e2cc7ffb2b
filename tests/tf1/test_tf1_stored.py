"""Tests TF1 scripts whose programs were compiled before."""

import keras_tpu_estimator  # noqa: F401 - isort: skip

import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers import slow
from stored_programs import ran, store
from tf1_programs import (
    batches,
    classes_data,
    dense,
    estimator,
    fed,
    model_fn_of,
    values_of,
)

DATA = batches(*classes_data(6), steps=32)
FEATURES = [features for features, _ in DATA]


def network(x, training):
    x = dense(x, 8, "hidden", tf.nn.relu)
    x = tf.nn.dropout(x, rate=0.2 if training else 0.0)
    return tf.identity(dense(x, 4, "logits"), name="outputs")


MODEL_FN = model_fn_of(network, lambda step: tf.train.AdamOptimizer(0.01))
INPUTS = {"train": fed(DATA), "eval": fed(DATA), "infer": fed(FEATURES)}


@pytest.fixture
def log(caplog):
    """The lines of this package."""
    caplog.set_level(logging.INFO, "keras_tpu_estimator")
    return caplog


def made(model_dir, folder=None, use_tpu=True):
    return estimator(
        MODEL_FN, model_dir, use_tpu=use_tpu, config={"executables": folder}
    )


@pytest.mark.parametrize("use_tpu", [slow(False), True])
def test_stored_programs_give_the_same_results(tmp_path, log, use_tpu):
    folder = tmp_path / "compiled"
    files = [
        store(made(tmp_path / "planned", None, use_tpu), input_fn, folder, mode)
        for mode, input_fn in INPUTS.items()
    ]
    results = []
    for name, executables in (("jit", None), ("stored", folder)):
        log.clear()
        own = made(tmp_path / name, executables, use_tpu)
        own.train(INPUTS["train"], steps=8)
        result = own.evaluate(INPUTS["eval"])
        result["classes"] = [row["classes"] for row in own.predict(INPUTS["infer"])]
        results.append(result | values_of(own))
    assert ran(log.records) == files
    assert results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        np.testing.assert_array_equal(results[1][name], value, name)


def test_fetches_of_hooks_need_another_program(tmp_path, log):
    store(made(tmp_path), INPUTS["train"], tmp_path / "compiled", "train")
    hook = tf.train.LoggingTensorHook({"what": "outputs:0"}, every_n_iter=4)
    own = made(tmp_path / "run", tmp_path / "compiled")
    own.train(INPUTS["train"], hooks=[hook], steps=4)
    assert ran(log.records) == []
    assert "the nearest has another program" in log.text
