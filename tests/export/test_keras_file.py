"""Tests trained models in files that Keras loads."""

import os

import keras
import numpy as np
import pytest
from export_helpers import data, input_fn
from helpers import estimator_of
from keras import layers, ops

import keras_tpu_estimator as kte

X, _ = data()


def network(features, is_training):
    hidden = layers.Dense(8, "gelu")(features["x"])
    hidden = layers.BatchNormalization()(hidden, training=is_training)
    return layers.Dense(3)(layers.Dropout(0.5)(hidden, training=is_training))


def model_fn_of(make_predictions):
    def model_fn(features, labels, mode, params):
        logits = network(features, mode == kte.ModeKeys.TRAIN)
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, make_predictions(logits))
        loss = ops.mean(logits**2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    return model_fn


model_fn = model_fn_of(lambda logits: {"top": ops.argmax(logits, -1), "logits": logits})


@pytest.fixture(scope="module")
def trained_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained")
    estimator_of(model_fn, path).train(input_fn, steps=3)
    return path


@pytest.fixture
def trained(trained_dir):
    return estimator_of(model_fn, trained_dir)


def assert_same_predictions(model, estimator):
    (expected,) = estimator.predict(input_fn, yield_single_examples=False)
    got = model.predict(X, verbose=0)
    assert got.keys() == expected.keys()
    np.testing.assert_array_equal(got["top"], expected["top"])
    np.testing.assert_allclose(got["logits"], expected["logits"], rtol=1e-4)


def test_a_model_is_loaded_by_keras(trained, tmp_path):
    path = kte.export_keras(trained, tmp_path / "model.keras", X)
    assert path == str(tmp_path / "model.keras")
    assert os.listdir(tmp_path) == ["model.keras"]
    assert_same_predictions(keras.models.load_model(path), trained)


def test_weights_are_loaded_by_keras(trained, tmp_path):
    path = kte.export_keras(trained, tmp_path / "model.weights.h5", X)
    inputs = {"x": keras.Input((4,), name="x")}
    logits = network(inputs, is_training=False)
    model = keras.Model(inputs, {"top": ops.argmax(logits, -1), "logits": logits})
    model.load_weights(path)
    assert_same_predictions(model, trained)


def of_jax(logits):
    import jax

    return {"y": jax.nn.softmax(logits)}


def test_other_functions_are_rejected(trained_dir, tmp_path):
    estimator = estimator_of(model_fn_of(of_jax), trained_dir)
    with pytest.raises(ValueError, match="only Keras layers and keras.ops"):
        kte.export_keras(estimator, tmp_path / "model.keras", X)
    assert os.listdir(tmp_path) == []


def test_other_results_are_rejected(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "keras_tpu_estimator.front_ends.keras.keras_file.set_weights",
        lambda model, loaded: None,
    )
    with pytest.raises(ValueError, match="the same as `model_fn`"):
        kte.export_keras(trained, tmp_path / "model.keras", X)
    assert os.listdir(tmp_path) == []


def test_paths_and_checkpoints_are_checked(trained, tmp_path):
    with pytest.raises(ValueError, match="must end with '.keras' or"):
        kte.export_keras(trained, tmp_path / "model.h5", X)
    with pytest.raises(ValueError, match="must end with '.keras' or"):
        kte.export_keras(trained, os.fsencode(tmp_path / "model.h5"), X)
    untrained = estimator_of(model_fn, tmp_path)
    with pytest.raises(ValueError, match="checkpoint"):
        kte.export_keras(untrained, tmp_path / "model.keras", X)


def test_scaffold_fn_is_not_called(tmp_path):
    """A Keras model has no variables of the estimator for a scaffold to find."""

    def model_fn(features, labels, mode, params):
        y = layers.Dense(1, name="dense")(features["x"])
        averages = kte.ExponentialMovingAverage(0.5)
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(
                mode,
                {"y": y},
                scaffold_fn=lambda: kte.Scaffold(
                    variables_to_restore=averages.variables_to_restore()
                ),
            )
        loss = ops.mean(y**2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        train_op = [optimizer.minimize(loss), averages.apply()]
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = estimator_of(model_fn, tmp_path)
    estimator.train(input_fn, steps=2)
    path = kte.export_keras(estimator, tmp_path / "averages.keras", X)
    model = keras.models.load_model(path)
    np.testing.assert_allclose(
        model.get_layer("dense").kernel,
        estimator.get_variable_value("dense/kernel/ExponentialMovingAverage"),
    )
