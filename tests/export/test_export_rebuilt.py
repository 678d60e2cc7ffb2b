"""Tests exports that Keras rebuilds from TensorFlow operations."""

import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - its graphs are rewritten
from export_helpers import data, input_fn
from helpers import estimator_of
from keras import layers, ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.export import rebuilding
from keras_tpu_estimator.export.rebuilding import in_plain_ops

pytestmark = pytest.mark.usefixtures("forked_rebuilding", "forked_trials")

X, _ = data()
RAW = kte.export.build_raw_serving_input_receiver_fn(X)
REBUILT = {"config": {"export_backend": "tensorflow"}}


NUMBERS = np.array([[-1.5, 0.0, -0.0, 2.5], [3.0, -4.0, 0.5, 3.0]], "float32")


def model_fn_of(network):
    def model_fn(features, labels, mode, params):
        predictions = network(features["x"], mode == kte.ModeKeys.TRAIN)
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, predictions)
        # All outputs except positions, which have no gradient.
        (first, *_) = predictions.values()
        loss = ops.mean(first**2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    return model_fn


def all_kinds(x, is_training):
    hidden = layers.Dense(8, "gelu")(x)
    hidden = layers.BatchNormalization()(hidden, training=is_training)
    hidden = layers.Dropout(0.5)(hidden, training=is_training)
    steps = layers.Reshape((4, 2))(hidden)
    steps = layers.LSTM(3, return_sequences=True)(steps)
    steps = layers.MultiHeadAttention(2, 2)(steps, steps)
    images = layers.Reshape((2, 2, 3))(steps)
    y = layers.Flatten()(layers.Conv2D(2, 2, padding="same")(images))
    best, places = ops.top_k(y, 2)
    # Thirds, which no table of weights contains.
    large = layers.UpSampling2D(3, interpolation="bicubic")(100.0 * images)
    return {"y": y, "best": best, "places": places, "large": large}


def solving(x, is_training):
    y = layers.Dense(3)(x)
    matrix = ops.matmul(y[:, :, None], y[:, None, :]) + ops.eye(3)
    return {"root": ops.cholesky(matrix)}


def beyond(x, is_training):
    """Casts and lookups outside the range of an integer or a table."""
    y = layers.Dense(3)(x)
    large = 300.0 * x
    ids = ops.cast(large, "int32")
    dtypes = ("uint8", "int8", "uint32", "int32")
    return {
        "a": y,
        "rows": layers.Embedding(5, 2)(ids),
        "taken": ops.take(ops.arange(10), ids[:, 0]),
        "along": ops.take_along_axis(y, ids[:, :2], axis=1),
        **{dtype: ops.cast(1e8 * large, dtype) for dtype in dtypes},
        "nan": ops.cast(ops.log(-1.0 - large**2), "int32"),
    }


def served(path, features):
    import tensorflow as tf

    signatures = tf.saved_model.load(path, tags=["serve"]).signatures
    outputs = signatures["serving_default"](
        **{name: tf.constant(value) for name, value in features.items()}
    )
    return {name: value.numpy() for name, value in outputs.items()}


def ops_of(path):
    from tensorflow.core.protobuf import saved_model_pb2

    with open(f"{path}/saved_model.pb", "rb") as file:
        proto = saved_model_pb2.SavedModel.FromString(file.read())
    nodes = []
    for meta_graph in proto.meta_graphs:
        graph = meta_graph.graph_def
        nodes.extend(graph.node)
        for function in graph.library.function:
            nodes.extend(function.node_def)
    return {node.op for node in nodes}


@pytest.mark.rows(3)
@pytest.mark.parametrize("network", [all_kinds, solving, beyond])
def test_predictions(network, tmp_path):
    estimator = estimator_of(model_fn_of(network), tmp_path, **REBUILT)
    estimator.train(input_fn, steps=3)
    path = estimator.export_saved_model(tmp_path / "export", RAW)
    (expected,) = estimator.predict(input_fn, yield_single_examples=False)
    got = served(path, X)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, 1e-4, 1e-5)
    # Any batch size, without XLA.
    few = served(path, {"x": X["x"][:5]})
    np.testing.assert_allclose(few[name], expected[name][:5], rtol=1e-4, atol=1e-5)
    assert "XlaCallModule" not in ops_of(path)


def test_both_kinds_of_metagraphs(tmp_path, untried):
    """Signatures, batching and receivers are like those of other exports."""

    def model_fn(features, labels, mode, params):
        y = kte.export.inference_on_tpu(
            layers.Dense(2, name="dense"), [features["x"]], 1, 16, 0
        )
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(
                mode,
                {"y": y},
                export_outputs={
                    "serving_default": kte.export.PredictOutput(y),
                    "double": kte.export.PredictOutput({"twice": 2 * y}),
                },
            )
        loss = ops.mean((y - 1.0) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(mode, {"y": y}, loss, optimizer.minimize(loss))

    estimator = estimator_of(model_fn, tmp_path, **REBUILT)
    estimator.train(input_fn, steps=1)
    supervised = kte.export.build_raw_supervised_input_receiver_fn(
        X, {"label": data()[1]}
    )
    path = estimator.experimental_export_all_saved_models(
        tmp_path / "export", {"eval": supervised, "infer": RAW}
    )
    (expected,) = estimator.predict(input_fn, yield_single_examples=False)
    import tensorflow as tf

    served_by = tf.saved_model.load(path, tags=["serve", "tpu"]).signatures
    outputs = served_by["double"](x=tf.constant(X["x"]))
    np.testing.assert_allclose(
        outputs["twice"], 2 * expected["y"], rtol=1e-5, atol=1e-6
    )
    # Metrics and losses may be from other libraries.
    assert {"XlaCallModule", "BatchFunction", "MatMul"} <= ops_of(path)


class Unknown(layers.Layer):
    def call(self, x):
        return x + 1


def not_of_keras(x, is_training):
    import jax.numpy as jnp

    return {"y": jnp.sin(layers.Dense(1)(x))}


def own_layer(x, is_training):
    return {"y": Unknown()(layers.Dense(1)(x))}


def added(a, b):
    return a + b


def own_function(x, is_training):
    y = layers.Dense(2)(x)
    return {"y": ops.associative_scan(added, y, axis=1)}


class Count(layers.Layer):
    def build(self, shape):
        self.count = self.add_weight(name="count", trainable=False)

    def call(self, x):
        self.count.assign(self.count + 1)
        return x * self.count


def counting(x, is_training):
    return {"y": Count(name="count")(layers.Dense(1)(x))}


def line_of(function, number):
    """A line of a function, counted from its first."""
    return function.__code__.co_firstlineno + number


@pytest.mark.parametrize(
    ("network", "exception", "message"),
    [
        (
            not_of_keras,
            ValueError,
            r"must use only Keras layers.*at .*test_export_rebuilt.py:\d+: "
            ".*export_backend='jax'",
        ),
        (
            own_layer,
            kte.export.UnservableError,
            "rebuilt under Keras's TensorFlow backend must consist.* at "
            rf".*test_export_rebuilt.py:{line_of(own_layer, 1)}: .*'Unknown'",
        ),
        (
            own_function,
            kte.export.UnservableError,
            "rebuilt under Keras's TensorFlow backend must consist.* at "
            rf".*test_export_rebuilt.py:{line_of(own_function, 2)}: .*'added'",
        ),
        (
            counting,
            kte.export.UnservableError,
            "must not assign variables.*'count/count' at "
            rf".*test_export_rebuilt.py:{line_of(Count.call, 1)}\.",
        ),
    ],
)
def test_models_that_cannot_be_rebuilt(network, exception, message, tmp_path):
    estimator = estimator_of(model_fn_of(network), tmp_path, **REBUILT)
    estimator.train(input_fn, steps=1)
    with pytest.raises(exception, match=f"(?s){message}"):
        estimator.export_saved_model(tmp_path / "export", RAW)
    assert not (tmp_path / "export").exists()


def test_hanging_process_is_an_error(tmp_path, monkeypatch):
    script = tmp_path / "hangs.py"
    script.write_text("import signal\nsignal.pause()\n")
    monkeypatch.setattr(rebuilding, "_SCRIPT", script)
    config = {**REBUILT["config"], "export_timeout_secs": 0.1}
    estimator = estimator_of(model_fn_of(solving), tmp_path, config=config)
    estimator.train(input_fn, steps=1)
    with pytest.raises(TimeoutError, match="within 0.1 s.*export_timeout_secs"):
        estimator.export_saved_model(tmp_path / "export", RAW)
    assert not (tmp_path / "export").exists()


def made_plain(function, dtype="float32"):
    """The types of the ops, and a function that runs them."""
    traced = tf.function(function, autograph=False).get_concrete_function(
        tf.TensorSpec([None, 4], dtype)
    )
    names = [tensor.name for tensor in (*traced.inputs, *traced.outputs)]
    graph = in_plain_ops(traced.graph.as_graph_def(), names)

    def run(x):
        with tf.Graph().as_default() as imported:
            x = tf.constant(x, dtype)
            results = tf.graph_util.import_graph_def(graph, {names[0]: x}, names[1:])
            with tf.compat.v1.Session(graph=imported) as session:
                return session.run(results)[0]

    return {node.op for node in graph.node}, run


def of_keras(find, x):
    """Finds the index of a maximum like Keras on TensorFlow."""
    bits = tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), tf.int32.min)
    is_negative_zero = tf.logical_and(tf.equal(x, 0.0), tf.less(bits, 0))
    x = tf.where(is_negative_zero, -np.finfo("float32").tiny, x)
    return find(tf.reshape(x, [-1]), output_type=tf.int32)


def test_argmax_and_argmin_ignore_the_sign_bit():
    for find, place in ((tf.argmax, 4), (tf.argmin, 5)):
        ops, run = made_plain(lambda x, find=find: of_keras(find, x))
        assert not ops & {"Bitcast", "SelectV2", "BitwiseAnd"}
        assert run(NUMBERS) == place


def test_user_selection_is_unchanged():
    def chosen(x):
        return tf.argmax(tf.where(x > 2.0, -1.0, x), axis=-1)

    ops, run = made_plain(chosen)
    assert "SelectV2" in ops
    np.testing.assert_array_equal(run(NUMBERS), [1, 2])


def test_user_bitcast_is_unchanged():
    ops, run = made_plain(lambda x: tf.bitcast(x, tf.int32))
    assert "Bitcast" in ops
    np.testing.assert_array_equal(run(NUMBERS), NUMBERS.view("int32"))


def test_complementary_error_function():
    for dtype, error in (("float32", 1e-6), ("float64", 1e-12)):
        for function in (tf.math.erfc, lambda x: tf.math.erfc(-x)):
            ops, run = made_plain(function, dtype)
            assert "Erfc" not in ops
            expected = function(NUMBERS.astype(dtype))
            np.testing.assert_allclose(run(NUMBERS), expected, error, error)


def test_gelu_has_the_pattern_of_tensorflow_lite():
    ops, run = made_plain(lambda x: tf.nn.gelu(x, approximate=False))
    assert {"AddV2", "Erf"} <= ops
    assert not ops & {"Erfc", "Sub"}
    expected = tf.nn.gelu(NUMBERS, approximate=False)
    np.testing.assert_allclose(run(NUMBERS), expected, 1e-5, 1e-6)


def test_unused_nodes_are_removed():
    def unread(x):
        tf.sqrt(x)
        return tf.identity(x)

    ops, _ = made_plain(unread)
    assert "Sqrt" not in ops
