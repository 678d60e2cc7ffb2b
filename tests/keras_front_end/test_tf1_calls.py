"""Tests that remaining TensorFlow calls in a Keras `model_fn` are refused."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
import tensorflow  # noqa: TID253 - a TF1 call that remains
import tensorflow.compat.v1 as tf  # noqa: TID253
from helpers import (
    batches_of,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    squared_error,
)
from keras import ops
from tensorflow.compat.v1 import nn, reduce_sum  # noqa: TID253

import keras_tpu_estimator as kte
from keras_tpu_estimator.errors import TF1CallError

X, Y = regression_data(examples=16)
HERE = __file__
ADAM = tf.train.AdamOptimizer(0.1)


def message(network, tmp_path, loss_fn=squared_error, optimizer=None):
    """Returns the error message of training a network."""
    model_fn = model_fn_of(network, optimizer, loss_fn)
    estimator = estimator_of(model_fn, tmp_path)
    with pytest.raises(TF1CallError) as caught:
        estimator.train(batches_of(X, Y), steps=1)
    return str(caught.value)


def line_of(function, number):
    """A line of a function, counted from its first one."""
    return inspect.getsourcelines(function)[1] + number


def variable(features, is_training):
    kernel = tf.get_variable("kernel", [3, 1])
    return ops.matmul(features, kernel)


def in_a_scope(features, is_training):
    with tf.variable_scope("dense", reuse=tf.AUTO_REUSE):
        return ops.matmul(features, tf.get_variable("kernel", [3, 1]))


def plain(features, is_training):
    return features * tensorflow.Variable(2.0)


def several_lines(features, is_training):
    return linear(
        tf.concat(
            [features, features],
            axis=1,
        ),
        is_training,
    )


def alias(features, is_training):
    activation = tf.nn.relu
    return activation(linear(features, is_training))


def gone(features, is_training):
    return tf.contrib.layers.layer_norm(linear(features, is_training))


def loss_of_version_1(features, is_training):
    tf = tensorflow  # Its losses are Keras's.
    return tf.losses.softmax_cross_entropy(features, features)


def all_variables(features, is_training):
    outputs = linear(features, is_training)
    return outputs + sum(tf.reduce_sum(v) for v in tf.trainable_variables())


def losses_of_layers(features, is_training):
    outputs = linear(features, is_training)
    return outputs + sum(tf.get_collection(tf.GraphKeys.LOSSES))


@pytest.fixture(autouse=True)
def as_installed(monkeypatch) -> None:
    """TensorFlow without changes by other tests."""
    for module in (tensorflow, tensorflow.compat.v1, tf):
        for name in ("contrib", "estimator"):
            monkeypatch.delattr(module, name, raising=False)


@pytest.mark.parametrize(
    ("network", "number", "name", "counterpart"),
    [
        (variable, 1, "tf.get_variable", "keras.Variable"),
        (in_a_scope, 2, "tf.get_variable", "keras.Variable"),
        (plain, 1, "tf.Variable", "keras.Variable"),
        (several_lines, 2, "tf.concat", "keras.ops.concatenate"),
        (alias, 2, "tf.nn.relu", "keras.ops.relu"),
        (
            loss_of_version_1,
            2,
            "tf.losses.softmax_cross_entropy",
            "keras.losses",
        ),
        (all_variables, 2, "tf.trainable_variables", "kte.trainable_variables"),
        (losses_of_layers, 2, "tf.get_collection", "Its counterpart: "),
        (
            gone,
            1,
            "tf.contrib.layers.layer_norm",
            "keras.layers.LayerNormalization",
        ),
    ],
)
def test_error_has_the_name_line_and_counterpart(
    network, number, name, counterpart, tmp_path
) -> None:
    text = message(network, tmp_path)
    assert f"Received `{name}`" in text
    assert f"at {HERE}:{line_of(network, number)}." in text
    assert counterpart in text
    assert "docs/migrating.md#" in text
    assert "kte.tf1.model_fn" in text


def test_error_says_what_to_leave_out(tmp_path) -> None:
    network = in_keras(lambda x: tf.contrib.framework.fuse_op(x))
    text = message(network, tmp_path)
    assert "XLA fuses the operations of a step by itself. Or run" in text


def in_keras(operation):
    """A network that applies a function to a dense layer's outputs."""
    return lambda features, is_training: operation(linear(features, True))


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("tf.reduce_mean", lambda x: tf.reduce_mean(x)),
        ("tf.reduce_sum", lambda x: reduce_sum(x)),
        ("tf.nn.softmax", lambda x: nn.softmax(x)),
        ("tf.layers.dense", lambda x: tf.layers.dense(x, 1)),
        ("tf.layers.dense", lambda x: tensorflow.layers.dense(x, 1)),
        ("tf.estimator.ModeKeys.TRAIN", lambda x: tf.estimator.ModeKeys.TRAIN),
        ("tf.summary.scalar", lambda x: tensorflow.summary.scalar("x", x)),
        ("tf.gradients", lambda x: tf.gradients(x, [x])),
        ("tf.placeholder", lambda x: tf.placeholder(tf.float32)),
        ("tf.while_loop", lambda x: tf.while_loop(bool, bool, [x])),
        ("tf.losses.huber_loss", lambda x: tf.losses.huber_loss(x, x)),
        ("tf.metrics.mean", lambda x: tf.metrics.mean(x)),
        ("tf.random_normal", lambda x: x + tf.random_normal([1])),
        ("tf.random.uniform", lambda x: x + tensorflow.random.uniform([1])),
        ("x * tf.ones([1])", lambda x: x * tf.ones([1])),
        ("tf.train.AdamOptimizer.minimize", lambda x: ADAM.minimize(x)),
    ],
)
def test_every_kind_of_tf1_call_is_refused(name, operation, tmp_path) -> None:
    text = message(in_keras(operation), tmp_path)
    assert f"`{name}`" in text
    assert HERE in text


def test_error_has_the_reason(tmp_path) -> None:
    assert "never be trained" in message(variable, tmp_path)
    assert "no longer has" in message(gone, tmp_path)
    assert "does not accept a JAX tensor" in message(alias, tmp_path)
    noise = in_keras(lambda x: x + tf.random_normal([1]))
    assert "the same in every step" in message(noise, tmp_path)


@pytest.mark.parametrize(
    ("network", "name"),
    [
        (variable, "tf.get_variable"),
        (plain, "tf.Variable"),
        (alias, "tf.nn.relu"),
        (gone, "tf.contrib.layers.layer_norm"),
        (in_keras(lambda x: x + tf.random_normal([1])), "tf.random_normal"),
        (in_keras(lambda x: ADAM.minimize(x)), "tf.train.AdamOptimizer"),
    ],
)
def test_tf1_calls_are_refused_without_eager_execution(network, name, tmp_path) -> None:
    with tf.Graph().as_default():
        assert f"`{name}" in message(network, tmp_path)


def test_error_keeps_its_cause(tmp_path) -> None:
    estimator = estimator_of(model_fn_of(alias), tmp_path)
    with pytest.raises(TF1CallError) as caught:
        estimator.train(batches_of(X, Y), steps=1)
    assert "traced array" in str(caught.value.__cause__)


@pytest.mark.parametrize("mode", ["eval", "infer"])
def test_tf1_calls_are_refused_in_every_mode(mode, tmp_path) -> None:
    estimator = estimator_of(model_fn_of(variable), tmp_path)
    with pytest.raises(TF1CallError, match="tf.get_variable"):
        if mode == "eval":
            estimator.evaluate(batches_of(X, Y))
        else:
            list(estimator.predict(batches_of(X)))


def test_tf1_call_in_metric_fn_is_explained(tmp_path) -> None:
    def metric_fn(labels, outputs):
        return {"accuracy": tf.metrics.accuracy(labels, outputs)}

    def model_fn(features, labels, mode, params):
        outputs = linear(features, False)
        return kte.TPUEstimatorSpec(
            mode,
            loss=squared_error(outputs, labels),
            eval_metrics=(metric_fn, [labels, outputs]),
        )

    with pytest.raises(TF1CallError, match="kte.metrics.accuracy"):
        estimator_of(model_fn, tmp_path).evaluate(batches_of(X, Y))


def test_other_uses_of_tensorflow_are_allowed(tmp_path) -> None:
    saved = tensorflow.train.Checkpoint(v=tensorflow.Variable([2.0]))
    path = saved.save(str(tmp_path / "saved"))

    def network(features, is_training):
        tf.logging.debug("shape %s", features.shape)
        assert tensorflow.io.gfile.exists(path + ".index")
        reader = tensorflow.train.load_checkpoint(path)
        name, shape = tensorflow.train.list_variables(path)[-1]
        start = reader.get_tensor("v/.ATTRIBUTES/VARIABLE_VALUE")
        with tf.Graph().as_default(), tf.Session() as session:
            made = tf.get_variable("v", initializer=3.0)
            session.run(made.initializer)
            scale = session.run(made)
        constant = tf.constant([[1.0], [2.0], [3.0]]).numpy()
        del name, shape
        return linear(features, is_training) + start * scale + constant[0]

    estimator = estimator_of(model_fn_of(network), tmp_path / "model")
    estimator.train(batches_of(X, Y), steps=1)


def test_errors_of_tensorflow_itself_are_raised_unchanged(tmp_path) -> None:
    def network(features, is_training):
        tensorflow.train.load_checkpoint(str(tmp_path / "absent"))

    estimator = estimator_of(model_fn_of(network), tmp_path)
    with pytest.raises(tensorflow.errors.NotFoundError):
        estimator.train(batches_of(X, Y), steps=1)


def test_errors_of_the_user_are_raised_unchanged(tmp_path) -> None:
    def network(features, is_training):
        return np.asarray(features)

    estimator = estimator_of(model_fn_of(network), tmp_path)
    with pytest.raises(Exception, match="traced array") as caught:
        estimator.train(batches_of(X, Y), steps=1)
    assert not isinstance(caught.value, TF1CallError)


def test_tensorflow_is_restored(tmp_path) -> None:
    message(variable, tmp_path)
    assert tensorflow.Variable(1.0).numpy() == 1
    assert tf.random_normal([2]).shape == (2,)


IMPORTS_LATE = """
import sys
import numpy as np
import keras_tpu_estimator as kte
from keras_tpu_estimator.tf1 import foreign_calls

with foreign_calls.rejected():
    assert "tensorflow" not in sys.modules


def model_fn(features, labels, mode, params):
    import tensorflow as tf

    return kte.TPUEstimatorSpec(
        mode, predictions={"y": features * tf.Variable(2.0).numpy()}
    )


estimator = kte.TPUEstimator(
    model_fn, config=kte.RunConfig(), use_tpu=False, predict_batch_size=2
)
try:
    next(estimator.predict(lambda params: np.ones((2, 1), "float32")))
except foreign_calls.TF1CallError as error:
    assert "a TensorFlow variable" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.usefixtures("forked_programs")
def test_tensorflow_imported_in_model_fn_is_also_refused() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS_LATE], check=True)
