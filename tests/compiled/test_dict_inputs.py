"""Tests that functional models read the right features of a dict."""

import collections

import keras
import numpy as np
import pytest
from keras import layers
from test_keras_model import evaluated, predicted

import keras_tpu_estimator as kte

pytestmark = pytest.mark.usefixtures("forked_trials")

BATCH = 8
RNG = np.random.default_rng(0)
FIRST, SECOND, OTHER = RNG.normal(size=(3, BATCH, 3)).astype("float32")
TARGET = FIRST[:, :1] - 2 * SECOND[:, :1]


def model_of(kind=dict):
    """A compiled model whose output depends on the order of its inputs."""
    keras.utils.set_random_seed(3)
    inputs = kind(b=keras.Input((3,), name="b"), a=keras.Input((3,), name="a"))
    output = layers.Dense(1, name="y")(2 * inputs["b"] - inputs["a"])
    model = keras.Model(inputs, output, name="difference")
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


def estimator_of(model, **kwargs):
    sizes = ("train_batch_size", "eval_batch_size", "predict_batch_size")
    return kte.from_keras(model, use_tpu=False, **dict.fromkeys(sizes, BATCH), **kwargs)


def reordered(features):
    return collections.OrderedDict(reversed(features.items()))


FEATURES = {
    "first": {"a": FIRST, "aaa": OTHER, "b": SECOND},
    "of another shape": {"a": FIRST, "_id": np.arange(BATCH), "b": SECOND},
    "ordered": reordered({"a": FIRST, "b": SECOND}),
    "ordered and more": reordered({"a": FIRST, "aa": OTHER, "b": SECOND}),
}
FEATURES["before all"] = {"Z": OTHER, **FEATURES["first"]}


@pytest.mark.rows(3)
@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
@pytest.mark.parametrize("name", FEATURES)
def test_additional_and_ordered_features(name, kind, tmp_path):
    own = {"a": FIRST, "b": SECOND}
    keras_model = model_of()
    before = evaluated(keras_model, own, TARGET)
    keras_model.train_on_batch(own, TARGET)
    expected = keras_model.predict(own, verbose=0)

    features = FEATURES[name]
    estimator = estimator_of(model_of(kind), model_dir=tmp_path / "run")

    def input_fn(params):
        yield features, TARGET

    result = estimator.evaluate(input_fn)
    for key, value in before.items():
        np.testing.assert_allclose(result[key], value, 1e-5)
    estimator.train(input_fn, steps=1)
    got = predicted(estimator, input_fn)["y"]
    np.testing.assert_allclose(got, expected, 1e-5, 1e-6)

    import tensorflow as tf

    receiver = kte.export.build_raw_serving_input_receiver_fn(features)
    path = estimator.export_saved_model(tmp_path / "export", receiver)
    served = tf.saved_model.load(path, tags=["serve"]).signatures["serving_default"](
        **{key: tf.constant(value) for key, value in features.items()}
    )
    np.testing.assert_allclose(served["y"], expected, 1e-5, 1e-6)
    file = kte.export_keras(estimator, tmp_path / "m.keras", features)
    loaded = keras.models.load_model(file)
    np.testing.assert_allclose(loaded.predict(own, verbose=0), expected, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (dict, {"aaa": OTHER}, "Received: 'a', 'aaa', 'b'. Remove 'aaa' from"),
        (dict, None, "Received: 'b', 'a'. Pass the tensors .* in a dict"),
        (collections.OrderedDict, {}, "Received: 'a', 'b'. Pass .* an? OrderedDict"),
    ],
)
def test_models_in_a_model_fn_refuse_features_in_other_places(kind, change, message):
    model = model_of(kind)
    features = {"a": FIRST, "b": SECOND}
    features = reordered(features) if change is None else {**features, **change}

    def model_fn(features, labels, mode, params):
        return kte.TPUEstimatorSpec(mode, {"y": model(features)})

    config = kte.RunConfig()
    estimator = kte.TPUEstimator(
        model_fn, config=config, use_tpu=False, predict_batch_size=BATCH
    )
    with pytest.raises(ValueError, match=f"'difference' must be called.*{message}"):
        next(estimator.predict(lambda params: iter([features])))


def test_models_in_a_model_fn_ignore_later_features():
    model = model_of()

    def model_fn(features, labels, mode, params):
        return kte.TPUEstimatorSpec(mode, {"y": model(features)})

    own = {"a": FIRST, "b": SECOND}
    config = kte.RunConfig()
    estimator = kte.TPUEstimator(
        model_fn, config=config, use_tpu=False, predict_batch_size=BATCH
    )
    with pytest.warns(UserWarning, match="doesn't match the expected structure"):
        got = predicted(estimator, lambda params: iter([{**own, "zzz": OTHER}]))
    np.testing.assert_allclose(got["y"], model.predict(own, verbose=0), 1e-5)
