"""Tests functions of `function.Defun` in a `model_fn`, as in Tensor2Tensor."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import function
from tf1_programs import fed, plain_session

from keras_tpu_estimator.tf1.graph.definitions import (
    BRANCHES,
    called,
    definition_of,
    source,
)
from keras_tpu_estimator.tf1_tools.tf_estimator import Estimator

pytestmark = pytest.mark.usefixtures("forked_trials")

X = np.array([[1, 2]], "float32")


def as_inputs(op):
    """Returns the shapes of a function's arguments as those of its results."""
    return [each.shape for each in op.inputs]


@function.Defun(tf.float32)
def square(x):
    return x * x


@function.Defun(tf.float32, tf.float32)
def both(x, y):
    return x * y, y * 2.0


@function.Defun(tf.float32, noinline=True)
def noisy(x):
    return x + 0.0 * tf.random_normal(tf.shape(x))


@function.Defun(
    tf.float32,
    tf.float32,
    python_grad_func=lambda op, dy, _: [dy * 3.0, dy * 5.0],
    shape_func=as_inputs,
)
def own(x, y):
    return x + y, y * 2.0


@function.Defun(
    tf.float32,
    python_grad_func=lambda op, dy: dy * 7.0,
    shape_func=as_inputs,
)
def nested(x):
    return own(x, x)[1] + 1.0


@function.Defun(
    python_grad_func=lambda x, dy: tf.convert_to_tensor(dy),
    shape_func=as_inputs,
)
def convert_gradient_to_tensor(x):
    return x


def shaped(x):
    return tf.reshape(x, [1, 1])


NETWORKS = {
    "square": square,
    "both": lambda y: tf.add_n([shaped(t) for t in both(y, y + 1.0)]),
    "noisy": lambda y: y + tf.stop_gradient(shaped(noisy(y))),
    "own": lambda y: tf.add_n(own(y, y + 1.0)),
    "cond": lambda y: tf.cond(y[0, 0] > 0, lambda: shaped(own(y, y)[0]), lambda: y),
    "loop": lambda y: tf.while_loop(
        lambda i, t: i < 2,
        lambda i, t: (i + 1, shaped(own(t, t)[0])),
        [0, y],
    )[1],
    "nested": nested,
    "converted": convert_gradient_to_tensor,
}
# Results of this script in TensorFlow 1.15.5: the weights after two steps, the loss,
# and the prediction.
NUMBERS = {
    "square": ([0.20128, -0.59744], 0.00016279284, 0.98724097),
    "both": ([76.965034, 152.93007], 21816648000.0, 147705.59),
    "noisy": ([0.82, 0.64], 10.239999, 4.2),
    "own": ([3.687999, 6.375999], 4591.418, 68.76),
    "cond": ([0.24, -0.52], 3.2399993, -0.79999983),
    "loop": ([333.28802, 665.57605], 44312464.0, 6657.7607),
}


def program(network):
    """A linear model with a function after it."""

    def model_fn(features, labels, mode, params):
        start = tf.ones_initializer()
        w = tf.get_variable("w", [2, 1], initializer=start)
        y = shaped(network(tf.matmul(features, w)))
        if mode == kte.ModeKeys.PREDICT:
            return kte.tf1.EstimatorSpec(mode, predictions={"y": y})
        loss = tf.losses.mean_squared_error(labels, y)
        step = tf.train.get_global_step()
        optimizer = tf.train.GradientDescentOptimizer(0.01)
        return kte.tf1.EstimatorSpec(
            mode, loss=loss, train_op=optimizer.minimize(loss, step)
        )

    return model_fn


@pytest.mark.rows(4)
@pytest.mark.parametrize("name", NUMBERS)
def test_results_match_tensorflow(tmp_path, name):
    data = [(X, X[:, :1])] * 2
    made = Estimator(program(NETWORKS[name]), str(tmp_path), params={})
    made.train(fed(data), steps=2)
    weights, loss, prediction = NUMBERS[name]
    found = made.get_variable_value("w").ravel()
    np.testing.assert_allclose(found, weights, rtol=1e-5)
    found = made.evaluate(fed(data[:1]))["loss"]
    np.testing.assert_allclose(found, loss, rtol=1e-4)
    (row,) = made.predict(fed([X]))
    np.testing.assert_allclose(row["y"], [prediction], rtol=1e-5)


@pytest.mark.parametrize("name", ["nested", "converted"])
def test_export_contains_the_function(tmp_path, name):
    model_dir = str(tmp_path / "model")
    made = Estimator(program(NETWORKS[name]), model_dir, params={})
    made.train(fed([(X, X[:, :1])]), steps=1)
    (row,) = made.predict(fed([X]))
    weights = made.get_variable_value("w")
    # One function's gradient is 7 times the true one; the other's is the true one.
    factor, start = {"nested": (7, 7), "converted": (1, 3)}[name]
    step = 0.02 * (start - 1) * factor * X.T
    np.testing.assert_allclose(weights, 1 - step, rtol=1e-5)

    def receiver():
        x = tf.placeholder(tf.float32, [1, 2], "x")
        return kte.export.TensorServingInputReceiver(x, {"x": x})

    path = made.export_saved_model(str(tmp_path / "export"), receiver)
    with tf.Graph().as_default(), plain_session() as session:
        loaded = tf.saved_model.load(session, ["serve"], str(path))
        (output,) = loaded.signature_def["serving_default"].outputs.values()
        served = session.run(output.name, {"x:0": X})
    np.testing.assert_allclose(served, [row["y"]], rtol=1e-6)


def test_all_results_of_a_branch_name_the_function():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [1, 1])
        outputs = tf.cond(
            x[0, 0] > 0, lambda: [own(x, x)[0] for _ in range(40)], lambda: [x] * 40
        )
    definition = definition_of(graph)
    (call,) = (node for node in definition.nodes.values() if node.op in BRANCHES)
    branch = definition.library[called(call)[0].name]
    assert len(outputs) == 40
    calls = {node.name for node in branch.node_def if "Partitioned" in node.op}
    results = [ref for ref in branch.ret.values() if source(ref) in calls]
    assert len(results) == 40
    assert {ref.split(":")[1] for ref in results} == {"output"}
