"""Tests state that a served model keeps between requests."""

import itertools
from concurrent import futures

import keras
import numpy as np
import pytest
from export_helpers import data, input_fn
from helpers import estimator_of
from keras import layers, ops

import keras_tpu_estimator as kte

pytestmark = pytest.mark.usefixtures("forked_rebuilding", "forked_trials")

X, _ = data()
RAW = kte.export.build_raw_serving_input_receiver_fn(X)


class Counter(layers.Layer):
    """Counts the calls of a model."""

    def build(self, shape):
        self.count = self.add_weight(
            (), "zeros", "int32", trainable=False, name="count"
        )

    def call(self, x):
        self.count.assign_add(1)
        return x + ops.cast(self.count, x.dtype)


def model_fn_of(batch_config=None):
    def model_fn(features, labels, mode, params):
        def network(x):
            hidden = layers.Dense(3, name="dense")(x)
            hidden = layers.Dropout(0.5, name="drop")(hidden, training=True)
            return Counter(name="counter")(hidden)

        if batch_config is None:
            y = network(features["x"])
        else:
            y = kte.export.inference_on_tpu(network, [features["x"]], *batch_config)
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, {"y": y})
        loss = ops.mean(y**2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    return model_fn


def trained(model_dir, model_fn, **settings):
    made = estimator_of(model_fn, model_dir, use_tpu=False, **settings)
    return made.train(input_fn, steps=2)


def test_state_continues_between_requests(tmp_path):
    import tensorflow as tf

    made = trained(tmp_path / "model", model_fn_of())
    path = made.export_saved_model(tmp_path / "export", RAW)
    batches = [X["x"][:4], X["x"][:4], X["x"][4:7]]

    def in_batches(params):
        for x in batches:
            yield {"x": x}

    expected = list(made.predict(in_batches, yield_single_examples=False))
    model = tf.saved_model.load(path, tags=["serve"])
    for x, batch in zip(batches, expected, strict=True):
        (got,) = model.signatures["serving_default"](x=tf.constant(x)).values()
        np.testing.assert_allclose(got, batch["y"], 1e-5, 1e-6)
    # Random numbers and the count differ, so the batches differ.
    assert not np.allclose(expected[0]["y"], expected[1]["y"])
    # Of concurrent requests, each starts from the state of the previous one. They
    # are long, so that others begin meanwhile.
    ones = tf.ones([50_000, 4])

    def answers(requests):
        answer = model.signatures["serving_default"]
        return [answer(x=ones)["y"].numpy().tobytes() for _ in range(requests)]

    with futures.ThreadPoolExecutor(4) as threads:
        got = itertools.chain(*threads.map(answers, [3] * 4))
    assert len({*got}) == 12
    # A new server starts with the checkpoint's state.
    again = tf.saved_model.load(path, tags=["serve"])
    (got,) = again.signatures["serving_default"](x=tf.constant(batches[0])).values()
    np.testing.assert_allclose(got, expected[0]["y"], 1e-5, 1e-6)


@pytest.mark.parametrize("export_backend", ["jax", "tensorflow"])
def test_unsupported_state_is_named(tmp_path, export_backend, untried):
    batch_config = (1, 16, 0) if export_backend == "jax" else None
    made = trained(
        tmp_path / "model",
        model_fn_of(batch_config),
        config={"export_backend": export_backend},
    )
    with pytest.raises(ValueError, match="must not assign.*'counter/count'"):
        made.export_saved_model(tmp_path / "export", RAW)


def test_sparse_floats_are_received(estimator, predictions, tmp_path):
    """Receivers may be sparse or ragged, and features may be sparse floats."""
    import tensorflow as tf

    v1 = tf.compat.v1

    def receiver_fn():
        sparse = v1.sparse_placeholder(tf.float32, [None, 4])
        ragged = v1.ragged.placeholder(tf.float32, 1, [])
        return kte.export.ServingInputReceiver(
            {"x": sparse}, {"x": sparse}, {"rows": {"ragged": ragged}}
        )

    def dense_receiver_fn():
        ragged = v1.ragged.placeholder(tf.float32, 1, [])
        x = ragged.to_tensor(shape=[None, 4])
        return kte.export.ServingInputReceiver({"x": x}, {"rows": ragged})

    rows, columns = np.meshgrid(range(16), range(4), indexing="ij")
    cells = np.stack([rows.ravel(), columns.ravel()], axis=1)
    for receiver, feed in (
        (
            receiver_fn,
            lambda info: {
                info["x"].coo_sparse.indices_tensor_name: cells[::-1],
                info["x"].coo_sparse.values_tensor_name: X["x"].ravel()[::-1],
                info["x"].coo_sparse.dense_shape_tensor_name: [16, 4],
            },
        ),
        (
            dense_receiver_fn,
            lambda info: dict(
                zip(
                    (t.name for t in info["rows"].composite_tensor.components),
                    (X["x"].ravel(), np.arange(0, 65, 4)),
                    strict=True,
                )
            ),
        ),
    ):
        path = estimator.export_saved_model(tmp_path, receiver)
        with tf.Graph().as_default(), v1.Session() as session:
            loaded = v1.saved_model.load(session, ["serve"], path)
            assert not any("rows:" in n for n in loaded.signature_def)
            signature = loaded.signature_def["serving_default"]
            got = session.run(signature.outputs["logits"].name, feed(signature.inputs))
        np.testing.assert_allclose(got, predictions["logits"], 1e-4, 1e-5)
