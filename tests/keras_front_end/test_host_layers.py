"""Tests Keras preprocessing layers in a `model_fn`."""

import keras
import numpy as np
import pytest
from helpers import estimator_of, model_fn_of

NUMBERS = np.array([[1], [2], [3], [1]], "int32")


def train(layer, tmp_path):
    def network(features, is_training):
        encoded = keras.ops.cast(layer(features), "float32")
        return keras.layers.Dense(1)(keras.ops.reshape(encoded, (4, -1)))

    estimator = estimator_of(model_fn_of(network), tmp_path, batch=4)
    labels = np.ones((4, 1), "float32")
    return estimator.train(lambda params: (NUMBERS, labels), steps=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.layers.Hashing(8, name="own"),
        lambda: keras.layers.IntegerLookup(vocabulary=[1, 2], name="own"),
        lambda: keras.layers.StringLookup(vocabulary=["a"], name="own"),
        lambda: keras.layers.TextVectorization(vocabulary=["a"], name="own"),
    ],
)
def test_host_layers_are_for_input_fn(make, tmp_path):
    with pytest.raises(ValueError, match=r"'own' in `model_fn`.*dataset\.map"):
        train(make(), tmp_path)


def test_crossed_features_are_for_input_fn(tmp_path):
    layer = keras.layers.HashedCrossing(8)
    with pytest.raises(ValueError, match="HashedCrossing must be called in"):
        train(lambda x: layer((x, x)), tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.layers.CategoryEncoding(8, output_mode="one_hot"),
        lambda: keras.layers.Discretization(bin_boundaries=[1.5]),
    ],
)
def test_layers_of_numbers_run_in_model_fn(make, tmp_path):
    assert train(make(), tmp_path).latest_checkpoint()


def test_layers_outside_model_fn_are_unchanged(tmp_path):
    layer = keras.layers.Hashing(8)
    expected = np.asarray(layer(NUMBERS))
    with pytest.raises(ValueError, match="Hashing"):
        train(layer, tmp_path)
    np.testing.assert_array_equal(layer(NUMBERS), expected)
    symbolic = layer(keras.Input((1,), dtype="int32"))
    assert symbolic.shape == (None, 1)
