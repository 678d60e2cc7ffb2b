"""Tests exports of examples in other runtimes."""

import importlib.util
import subprocess
import sys

import converting
import keras
import numpy as np
import pytest
from helpers import estimator_of, some_slow
from keras import layers, ops

import keras_tpu_estimator as kte

# This must precede forks of another process.
PYTHON = sys.executable
NEEDS = {
    "openvino": ("openvino",),
    "onnx": ("tf2onnx", "onnxruntime"),
    "tflite": ("ai_edge_litert",),
    "keras": (),
}
RNG = np.random.default_rng(0)
IMAGES = {"image": RNG.random((16, 8, 8, 1), "float32")}
WORDS = {"ids": RNG.integers(0, 30, (16, 6), "int32")}
LABELS = RNG.integers(0, 3, 16, "int32")


def encoder(features, labels, mode, params):
    """A layer like BERT's, and a classifier with two activations."""
    x = layers.Embedding(30, 8)(features["ids"])
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    x = x + layers.Dense(8)(layers.Dense(16, "gelu")(x))
    logits = layers.Dense(3)(layers.LayerNormalization()(x)[:, 0])
    if mode == kte.ModeKeys.PREDICT:
        scores = ops.softmax(ops.gelu(logits, approximate=False))
        predictions = {"class": ops.argmax(logits, -1), "scores": scores}
        return kte.TPUEstimatorSpec(mode, predictions)
    loss = ops.mean(
        ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    )
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def of_example(name):
    return lambda: importlib.import_module(f"examples.{name}").model_fn


PROGRAMS = {
    "digits": (of_example("digits"), IMAGES),
    "encoder": (lambda: encoder, WORDS),
}


@pytest.fixture(scope="module", params=some_slow(PROGRAMS, {"digits"}))
def exported(request, forked_rebuilding, forked_trials, tmp_path_factory):
    """An export, a request, and the results of `predict`."""
    folder = tmp_path_factory.mktemp(request.param)
    model_fn, features = PROGRAMS[request.param]
    estimator = estimator_of(
        model_fn(),
        folder,
        config={"export_backend": "tensorflow"},
        params={"learning_rate": 0.1},
        export_to_tpu=False,
    )
    estimator.train(lambda params: iter([(features, LABELS)]), steps=1)
    receiver_fn = kte.export.build_raw_serving_input_receiver_fn(features)
    path = estimator.export_saved_model(folder / "export", receiver_fn)
    np.savez(folder / "inputs.npz", **features)
    (expected,) = estimator.predict(
        lambda params: iter([features]), yield_single_examples=False
    )
    return path, folder / "inputs.npz", expected


@pytest.mark.parametrize(
    "tool", some_slow(converting.TOOLS, {"onnx", "tflite", "keras"})
)
def test_converted_models_match_predict(tool, exported, tmp_path):
    # The libraries are not imported here, because some start processes.
    if not all(map(importlib.util.find_spec, NEEDS[tool])):
        pytest.skip(f"{tool} cannot be installed here")
    path, given, expected = exported
    made = tmp_path / "outputs.npz"
    subprocess.run(
        [PYTHON, converting.__file__, tool, path, given, made],
        check=True,
        capture_output=True,
        text=True,
    )
    with np.load(made) as outputs:
        assert outputs.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(outputs[name], value, 1e-5, 1e-6)
