"""Tests estimators of tf-keras models against the numbers of TensorFlow 1.15.

`golden/keras_models.py` made the expected results with TensorFlow 1.15.5.
"""

import keras_tpu_estimator as kte  # isort: skip

import json
import subprocess
import sys

import numpy as np
import pytest
from helpers import slow
from tf1_golden import GOLDEN, golden

from keras_tpu_estimator.tf1.shims.resolving import resolve

EXPECTED = golden("keras_models")
QUICK = ["sequential", "weights"]


@pytest.fixture(scope="module")
def keras():
    kte.tf1.install()
    return resolve("keras")


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("cases", [QUICK, slow(sorted({*EXPECTED} - {*QUICK}))])
def test_results_are_those_of_tensorflow_1(cases, tmp_path):
    program, path = GOLDEN / "keras_models.py", tmp_path / "results.json"
    command = [sys.executable, "-m", "keras_tpu_estimator", "tf1", program, path]
    done = subprocess.run([*command, *cases], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads(path.read_text())
    assert [*results] == cases
    for case, found in results.items():
        expected = EXPECTED[case]
        assert found["signatures"] == expected["signatures"]
        for part in ("before", "start", "evaluated", "predicted", "values"):
            assert found[part].keys() == expected[part].keys()
            for name, value in expected[part].items():
                np.testing.assert_allclose(found[part][name], value, 1e-4, 1e-5)


def compiled(keras):
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(3,))])
    model.compile("sgd", "mse")
    return model


def test_models_must_be_compiled_and_functional(keras):
    make = keras.estimator.model_to_estimator
    model = compiled(keras)
    with pytest.raises(ValueError, match="needs either `keras_model` or"):
        make()
    with pytest.raises(ValueError, match="needs either `keras_model` or"):
        make(model, "model.h5")
    with pytest.raises(ValueError, match="`checkpoint_format` must be 'saver' or"):
        make(model, checkpoint_format="h5")
    with pytest.raises(ValueError, match="`keras_model` must be compiled"):
        make(keras.Sequential([keras.layers.Dense(1, input_shape=(3,))]))


def test_subclasses_of_models_are_an_error(keras):
    class Own(keras.Model):
        def call(self, x):
            return x

    for model in (Own(), keras.Sequential([keras.layers.Dense(1)])):
        model.compile("sgd", "mse")
        with pytest.raises(ValueError, match="`keras_model` must be functional, or"):
            keras.estimator.model_to_estimator(model)


def test_all_paths_have_the_same_function(keras):
    import tensorflow as tf

    function = keras.estimator.model_to_estimator
    assert resolve("compat.v2.keras").estimator.model_to_estimator is function
    assert resolve("python.estimator.keras").model_to_estimator is function
    assert kte.tf1.lookup("tf.keras.estimator.model_to_estimator").status.value == (
        "supplied"
    )
    with pytest.raises(AttributeError, match=r"`tf.keras.estimator.other` does not"):
        keras.estimator.other()
    assert not hasattr(tf.keras, "estimator")
