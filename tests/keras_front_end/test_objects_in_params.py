"""Tests that objects in `params` reach `model_fn` and are trained."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, regression_data, repeated
from keras import ops

import keras_tpu_estimator as kte

X, Y = regression_data()


def built(layer, size):
    layer.build((None, size))
    return layer


def params_of():
    return {
        "optimizer": keras.optimizers.Adam(0.05),
        "hidden": built(keras.layers.Dense(8, name="hidden"), 3),
        "model": keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(1, name="out")]
        ),
        "scale": jnp.float32(2.0),
        "unused": built(keras.layers.Dense(2), 3),
        "nested": {"sizes": [1, 2]},
    }


def model_fn(features, labels, mode, params):
    params["nested"]["sizes"].append(3)
    assert params["nested"]["sizes"] == [1, 2, 3]
    params["new"] = "value"
    y = params["scale"] * params["model"](params["hidden"](features))
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, predictions={"y": y})
    loss = ops.mean((y - labels) ** 2)
    train_op = None
    if mode == kte.ModeKeys.TRAIN:
        optimizer = kte.CrossShardOptimizer(params["optimizer"])
        train_op = optimizer.minimize(loss)
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_layers_models_and_optimizers_in_params(use_tpu, tmp_path):
    params = params_of()
    before = np.asarray(params["hidden"].kernel)
    estimator = estimator_of(model_fn, tmp_path, use_tpu, batch=64, params=params)
    losses = []
    for _ in range(2):
        estimator.train(repeated(X, Y), steps=20)
        losses.append(estimator.evaluate(batches_of(X, Y))["loss"])
    assert losses[1] < losses[0] < np.mean(Y**2)
    (batch,) = estimator.predict(batches_of(X), yield_single_examples=False)
    assert np.mean((batch["y"] - Y) ** 2) == pytest.approx(losses[1], rel=1e-4)
    trained = np.asarray(params["hidden"].kernel)
    assert not np.array_equal(before, trained)
    np.testing.assert_array_equal(
        trained, estimator.get_variable_value("hidden/kernel")
    )
    (out,) = params["model"].layers
    np.testing.assert_array_equal(
        out.kernel, estimator.get_variable_value(out.kernel.path)
    )
    assert params["nested"] == {"sizes": [1, 2]}
    assert "new" not in params


def test_params_of_an_estimator_are_copies(tmp_path):
    params = params_of()
    estimator = estimator_of(model_fn, tmp_path, params=params)
    params["nested"]["sizes"].append("later")
    seen = estimator.params
    assert seen["nested"] == {"sizes": [1, 2]}
    for name in ("optimizer", "hidden", "model", "scale"):
        assert seen[name] is params[name]
    seen["nested"]["sizes"].clear()
    assert estimator.params["nested"] == {"sizes": [1, 2]}


def test_input_fn_also_receives_the_objects(tmp_path):
    params = params_of()
    seen = []

    def input_fn(params):
        seen.append(params["model"])
        params["nested"]["sizes"].clear()
        return batches_of(X, Y)(params)

    estimator = estimator_of(model_fn, tmp_path, params=params)
    estimator.train(input_fn)
    assert seen == [params["model"]]
