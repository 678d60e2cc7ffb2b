"""Tests that operations of models compute the same without JAX."""

import keras
import numpy as np
import pytest
from helpers import estimator_of
from keras import layers, ops
from served_helpers import serve

import keras_tpu_estimator as kte

pytestmark = pytest.mark.usefixtures("forked_trials")


def every_op(features):
    """One output for each kind of op."""
    x, image, series = (features[name] for name in ("x", "image", "series"))
    scale = keras.Variable(2.0, name="_scale of (x)")
    embedded = layers.Embedding(20, 6, name="embedding")(features["ids"])
    masked = layers.Embedding(20, 6, mask_zero=True)(features["ids"])
    attended = layers.MultiHeadAttention(2, 3)(embedded, embedded)
    pooled = layers.MaxPooling2D()(
        layers.BatchNormalization()(layers.Conv2D(4, 3, 2)(image))
    )
    values, indices = ops.top_k(x, 3)
    return {
        "arccos": ops.arccos(x / 10),
        "arcsinh": ops.arcsinh(x),
        "erf": ops.erf(x) * scale,
        "same": x - features["same"],
        "gelu": layers.Dense(3, "gelu")(x),
        "exact gelu": ops.gelu(x, approximate=False),
        "top values": values,
        "top indices": indices,
        "softmax": ops.softmax(x),
        "sorted": ops.sort(x),
        "argsort": ops.argsort(x),
        "argmax": ops.argmax(x, -1),
        "truncated normal": keras.random.truncated_normal((5,), seed=3) + x,
        "one hot": ops.one_hot(features["ids"], 20),
        "cumsum": ops.cumsum(series, 1),
        "conv": layers.Dense(3)(layers.Flatten()(pooled)),
        "lstm": layers.LSTM(4)(series),
        "masked lstm": layers.LSTM(4)(masked),
        "bidirectional": layers.Bidirectional(layers.GRU(3, return_sequences=True))(
            series
        ),
        "attention": layers.LayerNormalization()(attended),
        "pooled": layers.GlobalAveragePooling1D()(attended),
        "half": ops.cast(layers.Dense(3, dtype="bfloat16")(x), "bfloat16"),
    }


def model_fn(features, labels, mode, params):
    outputs = every_op(features)
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, outputs)
    # The loss uses only one output, because training is not tested here.
    loss = ops.mean(outputs["gelu"] ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(1e-3))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def batch(examples, length):
    rng = np.random.default_rng(examples)
    x = rng.normal(size=(examples, 5)).astype("float32")
    return {
        "x": x,
        "same": x,
        "image": rng.normal(size=(examples, 12, 12, 1)).astype("float32"),
        "series": rng.normal(size=(examples, length, 3)).astype("float32"),
        "ids": rng.integers(0, 20, (examples, length)).astype("int32"),
    }


def request(examples, length):
    features = batch(examples, length)
    del features["same"]
    return features | {"ids": features["ids"].astype("int64")}


def receiver_fn():
    import tensorflow as tf

    placeholder = tf.compat.v1.placeholder
    tensors = {
        "x": placeholder(tf.float32, [None, 5]),
        "image": placeholder(tf.float32, [None, 12, 12, 1]),
        "series": placeholder(tf.float32, [None, None, 3]),
        "ids": placeholder(tf.int64, [None, None]),
    }
    features = tensors | {"same": tensors["x"]}
    return kte.export.ServingInputReceiver(features, tensors)


SIZES = [(1, 16), (4, 5)]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Pairs of predicted and served results for several sizes."""
    path = tmp_path_factory.mktemp("ops")
    estimator = estimator_of(model_fn, path, batch=1)
    estimator.train(lambda params: batch(4, 8), steps=1)
    folder = estimator.export_saved_model(path / "export", receiver_fn)
    served = serve(
        *(
            (folder, ["serve", "tpu"], "serving_default", request(*size))
            for size in SIZES
        )
    )
    predicted = [
        next(
            estimator_of(model_fn, path, batch=size[0]).predict(
                lambda params, size=size: batch(*size),
                yield_single_examples=False,
            )
        )
        for size in SIZES
    ]
    return dict(zip(SIZES, zip(predicted, served, strict=True), strict=True))


@pytest.mark.parametrize("size", SIZES)
def test_served_outputs_match_predictions(answers, size):
    predicted, served = answers[size]
    assert predicted.keys() == served.keys()
    for name, expected in predicted.items():
        got = served[name]
        assert got.dtype.name == expected.dtype.name, name
        tolerance = 2e-2 if name == "half" else 2e-5
        np.testing.assert_allclose(
            got.astype("float32"),
            expected.astype("float32"),
            rtol=tolerance,
            atol=tolerance,
            err_msg=name,
        )


def test_outputs_depend_on_the_size(answers):
    shapes = {served["attention"].shape for _, served in answers.values()}
    assert shapes == {(n, length, 6) for n, length in SIZES}
