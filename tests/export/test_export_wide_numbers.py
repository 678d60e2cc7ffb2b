"""Tests requests with 64-bit numbers that do not fit 32 bits."""

import keras
import numpy as np
import pytest
from helpers import estimator_of
from keras import layers, ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.export.serving_graph import in_dtype

pytestmark = pytest.mark.usefixtures("forked_rebuilding", "forked_trials")

FITTING = {
    "id": np.array([[2**31 - 1], [-(2**31)]]),
    "scale": np.array([[1e38], [np.inf]]),
}
TOO_LARGE = {
    "id": np.array([[3], [2**32 + 3]]),
    "scale": np.array([[1.0], [1e300]]),
}


def model_fn(features, labels, mode, params):
    rows = layers.Embedding(7, 2, name="rows")(ops.mod(features["id"], 7))
    y = ops.sum(rows, axis=(1, 2))
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(
            mode,
            {"y": y, "id": features["id"] * 1, "scale": features["scale"] * 1},
        )
    loss = ops.mean(y**2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def receiver_fn():
    import tensorflow as tf

    received = {
        "id": tf.compat.v1.placeholder(tf.int64, [None, 1], "id"),
        "scale": tf.compat.v1.placeholder(tf.float64, [None, 1], "scale"),
    }
    return kte.export.ServingInputReceiver(received, received)


@pytest.mark.parametrize(("backend", "graphs"), [("jax", 1), ("tensorflow", 2)])
def test_served_models_reject_the_same_numbers_as_predict(
    backend, graphs, tmp_path, caplog
):
    import tensorflow as tf

    warn_once.cache_clear()
    estimator = estimator_of(
        model_fn,
        tmp_path / "model",
        config={"export_backend": backend},
        export_saved_model_api_version=graphs,
    )
    estimator.train(lambda params: (FITTING, np.zeros(2)), steps=1)
    path = estimator.export_saved_model(tmp_path / "export", receiver_fn)
    # Only these can be converted, and converters drop the error.
    warnings = [each for each in caplog.messages if "['id']. If you convert" in each]
    assert len(warnings) == (backend == "tensorflow")
    loaded = tf.saved_model.load(path, tags=["serve"])
    served = loaded.signatures["serving_default"]

    def answers(features):
        given = {name: tf.constant(value) for name, value in features.items()}
        return {name: value.numpy() for name, value in served(**given).items()}

    got = answers(FITTING)
    predicted = list(estimator.predict(lambda params: FITTING))
    for name, value in got.items():
        np.testing.assert_allclose(value, [row[name] for row in predicted])
    for name in TOO_LARGE:
        wrong = {**FITTING, name: TOO_LARGE[name]}
        with pytest.raises(ValueError, match=f"'{name}'.* must fit"):
            list(estimator.predict(lambda params, wrong=wrong: wrong))
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{name}.* must fit"):
            answers(wrong)


@pytest.mark.parametrize(
    ("received", "dtype", "value"),
    [
        ("uint64", "int32", 2**40),
        ("int64", "int32", -(2**40)),
        ("int64", "uint8", 300),
        ("uint8", "int32", None),
        ("int32", "uint32", -1),
    ],
)
def test_integers_of_any_width_are_checked(received, dtype, value):
    import tensorflow as tf

    fitting = tf.constant([0, 3], received)
    cast = in_dtype(fitting, np.dtype(dtype), "id")
    assert cast.dtype == dtype and cast.numpy().tolist() == [0, 3]
    if value is not None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="id"):
            in_dtype(tf.constant([value], received), np.dtype(dtype), "id")
