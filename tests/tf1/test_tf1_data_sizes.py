"""Sizes that depend on data within a step, and sizes of zero."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import assert_same
from tf1_programs import estimator
from tf1_programs import fed
from tf1_programs import plain_session
from tf1_programs import run_in_session
from tf1_programs import trained
from tf1_programs import variable
from tf1_programs import weights

pytestmark = pytest.mark.usefixtures("forked_trials")

X = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")


def layer(x):
    """A dense layer over the last axis of any tensor."""
    return tf.tensordot(x, variable("kernel", 3, 3, seed=1), 1) + variable(
        "bias", 3, seed=2
    )


def of_kept(use):
    """A network of the rows that a condition keeps, as of a pad remover."""

    def network(x):
        rows = tf.reshape(x, [-1, 3])
        kept = tf.where(rows[:, 0] < 0.3)
        return use(tf.gather_nd(rows, kept), kept, tf.shape(rows))

    return network


USES = {
    "matrix": lambda rows, kept, shape: layer(rows),
    # As Tensor2Tensor's feed-forward layers do it.
    "batch_of_one": lambda rows, kept, shape: layer(rows[None])[0],
    "two_layers": lambda rows, kept, shape: tf.matmul(
        tf.nn.relu(layer(rows[None])[0]), variable("second", 3, 3)
    ),
    "scattered": lambda rows, kept, shape: tf.scatter_nd(
        kept, layer(rows[None])[0], tf.cast(shape, tf.int64)
    ),
    "masked": lambda rows, kept, shape: layer(
        tf.boolean_mask(rows, rows[:, 1] > 0)[None]
    ),
}


@pytest.mark.parametrize("use", USES)
def test_sizes_that_depend_on_data(tmp_path, use):
    network = of_kept(USES[use])

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_sum(tf.square(network(features)))
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss, step)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def without_labels(features, mode, params):
        return model_fn(features, None, mode, params)

    data = [X, -X]
    _, expected = run_in_session(without_labels, [(x,) for x in data])
    assert_same(trained(model_fn, tmp_path, data), expected, rtol=1e-4)


def test_variables_with_a_dimension_of_zero(tmp_path):
    """Weights, metrics and predictions are those of TensorFlow 1.15.5."""

    def model_fn(features, labels, mode, params):
        empty = tf.get_variable("empty", [0, 3])
        none = tf.get_variable("none", [2, 0], initializer=weights(2, 0))
        w = tf.get_variable("w", [2, 1], initializer=tf.ones_initializer())
        x = tf.concat([features, tf.matmul(features, none)], 1)
        y = tf.matmul(x, w) + tf.reduce_sum(empty)
        if mode == kte.ModeKeys.PREDICT:
            return kte.tf1.EstimatorSpec(mode, predictions={"y": y})
        loss = tf.losses.mean_squared_error(labels, y)
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.AdamOptimizer(0.1).minimize(loss, step)
        return kte.tf1.EstimatorSpec(
            mode,
            loss=loss,
            train_op=train_op,
            eval_metric_ops={"m": tf.metrics.mean(y)},
        )

    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    for expected, loss in ((0.8011878, 0.3628564), (0.6129167, 0.051000733)):
        made = estimator(model_fn, tmp_path / "model")
        made.train(fed([(x, y)] * 2), steps=2)
        found = made.get_variable_value("w").ravel()
        np.testing.assert_allclose(found, [expected] * 2, rtol=1e-5)
        result = made.evaluate(fed([(x, y)]))
        np.testing.assert_allclose(result["loss"], loss, rtol=1e-4)
        np.testing.assert_allclose(result["m"], 2 * expected, rtol=1e-5)
        rows = [row["y"] for row in made.predict(fed([x]))]
        np.testing.assert_allclose(rows, [[2 * expected]] * 4, rtol=1e-5)
    assert made.get_variable_value("empty").shape == (0, 3)
    assert made.get_variable_value("none/Adam").shape == (2, 0)

    def receiver():
        features = tf.placeholder(tf.float32, [None, 2], "x")
        return kte.export.TensorServingInputReceiver(features, features)

    path = made.export_saved_model(str(tmp_path / "export"), receiver)
    with tf.Graph().as_default(), plain_session() as session:
        loaded = tf.saved_model.load(session, ["serve"], str(path))
        (output,) = loaded.signature_def["serving_default"].outputs.values()
        served = session.run(output.name, {"x:0": x})
    np.testing.assert_allclose(served, rows, rtol=1e-6)
