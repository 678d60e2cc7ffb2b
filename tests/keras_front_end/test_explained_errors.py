"""Tests that errors in a `model_fn` list the available keys and inputs."""

import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, linear, model_fn_of, regression_data

import keras_tpu_estimator as kte

X, Y = regression_data(32)


def notes_of(error: Exception) -> str:
    return "\n".join(error.__notes__)


def wide(width):
    """Batches with wider features than in training."""
    return batches_of(np.ones((32, width), "float32"), Y)


@pytest.mark.parametrize("mode", ["train", "evaluate", "predict"])
def test_missing_feature(tmp_path, mode):
    def input_fn(params):
        yield {"image": X[:16], "weight": Y[:16]}, Y[:16]

    def network(features, is_training):
        return linear(features["imagee"], is_training)

    estimator = estimator_of(model_fn_of(network), tmp_path)
    call = getattr(estimator, mode)
    with pytest.raises(KeyError, match="imagee") as caught:
        list(call(input_fn, **({"steps": 1} if mode == "train" else {})))
    assert (
        "`features` has no 'imagee', but ['image', 'weight']. Did you mean 'image'?"
    ) in notes_of(caught.value)
    assert "`params`" not in notes_of(caught.value)


def test_missing_parameter(tmp_path):
    def model_fn(features, labels, mode, params):
        return kte.TPUEstimatorSpec(mode, predictions=params["unit"])

    estimator = estimator_of(model_fn, tmp_path, params={"units": 3})
    with pytest.raises(KeyError) as caught:
        estimator.evaluate(batches_of(X, Y))
    assert "Did you mean 'units'?" in notes_of(caught.value)


def test_other_width_after_training(tmp_path):
    model_fn = model_fn_of(linear)
    estimator = estimator_of(model_fn, tmp_path)
    estimator.train(batches_of(X, Y), steps=1)
    given = r"model_fn received features: float32 of shape \(16, 4\)"
    with pytest.raises(ValueError, match="as in earlier calls") as caught:
        estimator.evaluate(wide(4))
    assert "features: float32 of shape (16, 4)" in notes_of(caught.value)
    for call in ("evaluate", "predict"):
        again = estimator_of(model_fn, tmp_path)
        with pytest.raises(ValueError, match=given):
            list(getattr(again, call)(wide(4)))


def test_other_width_of_a_layer_made_outside(tmp_path):
    layer = keras.layers.Dense(1)
    layer.build((None, 3))
    network = model_fn_of(lambda features, is_training: layer(features))
    with pytest.raises(ValueError, match="have value 3") as caught:
        estimator_of(network, tmp_path).evaluate(wide(4))
    assert "features: float32 of shape (16, 4)" in notes_of(caught.value)


def test_other_errors_have_no_notes(tmp_path):
    def model_fn(features, labels, mode, params):
        raise ValueError("own")

    with pytest.raises(ValueError, match="own") as caught:
        estimator_of(model_fn, tmp_path).evaluate(batches_of(X, Y))
    assert "model_fn received" not in notes_of(caught.value)
