"""Tests gradients that the bridge to XLA lacks."""

import keras_tpu_estimator as kte  # isort: skip

import ast
import inspect
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import ops
from test_tf1_resource_operations import has_xla, operations
from tf1_programs import estimator, fed

from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.gradients import GRADIENTS


def called_by(function):
    """The names that a function and its helpers call."""
    module, found, left = inspect.getmodule(function), set(), [function]
    known = set()
    while left:
        tree = ast.parse(inspect.getsource(left.pop()).lstrip())
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            found.add(name)
            helper = getattr(module, name, None)
            if name.startswith("_") and inspect.isfunction(helper):
                if name not in known:
                    known.add(name)
                    left.append(helper)
    return found


def test_table_has_all_gradients_without_a_kernel():
    """The test reads the gradient code of all operations of the bridge."""
    by_name = {}
    for each in operations():
        words = re.sub(r"[^a-z0-9]", "", each.name.lower())
        by_name[words] = each.name
    made = {}
    for kind, entry in ops.gradient_registry._registry.items():
        gradient = entry["type"]
        if gradient is None or kind.startswith("_") or not has_xla(kind):
            continue
        for name in called_by(gradient):
            op = by_name.get(name.replace("_", "").lower())
            if op and not op.startswith("_") and not has_xla(op):
                made.setdefault(op, set()).add(kind)
    of_the_host = {
        op: kinds for op, kinds in made.items() if "Grad" in op or "Backprop" in op
    }
    assert of_the_host == {f"{kind}Grad": {kind} for kind in GRADIENTS}


NEAREST = {
    ((2, 3), (4, 6), ""): [[14, 22, 30], [62, 70, 78]],
    ((3, 2), (7, 3), ""): [[21, 15], [44, 25], [68, 37]],
    ((3, 2), (7, 3), "align_corners"): [[3, 12], [27, 63], [33, 72]],
    ((3, 2), (7, 3), "half_pixel_centers"): [[3, 12], [27, 63], [33, 72]],
    ((5, 2), (3, 2), ""): [[0, 1], [2, 3], [0, 0], [4, 5], [0, 0]],
    ((5, 2), (3, 2), "align_corners"): [
        [0, 1],
        [0, 0],
        [2, 3],
        [0, 0],
        [4, 5],
    ],
}


def resized_sum(x, size, setting):
    """The sum of resized images, with each pixel multiplied by its index."""
    numbers = tf.reshape(tf.range(float(np.prod(size))), [1, *size, 1])
    settings = {setting: True} if setting else {}
    new = tf.image.resize_nearest_neighbor(x, size, **settings)
    return tf.reduce_sum(new * numbers)


@pytest.mark.parametrize(("case", "expected"), NEAREST.items())
def test_gradient_of_nearest_neighbors(case, expected):
    # From TensorFlow 1.15.5: tf.gradients of this sum.
    old, size, setting = case
    with tf.Graph().as_default() as graph, internals.for_xla(graph):
        x = tf.zeros([1, *old, 1])
        (gradient,) = tf.gradients(resized_sum(x, size, setting), x)
        kinds = {op.type for op in graph.get_operations()}
        with tf.Session() as session:
            found = session.run(gradient)[0, :, :, 0]
    assert "ResizeNearestNeighborGrad" not in kinds
    assert found.tolist() == expected


def test_model_with_nearest_neighbors_trains(tmp_path):
    def model_fn(features, labels, mode, params):
        x = tf.get_variable("x", [1, 3, 2, 1], initializer=tf.zeros_initializer())
        loss = resized_sum(x, (7, 3), "") + resized_sum(x, (6, 4), "")
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.GradientDescentOptimizer(1.0).minimize(loss, step)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    made = estimator(model_fn, tmp_path)
    made.train(fed([np.ones((16, 1), "float32")]), steps=1)
    # The first is from TensorFlow 1.15.5; the second is computed by hand.
    expected = np.array([[21, 15], [44, 25], [68, 37]])
    expected += np.array([[10, 18], [42, 50], [74, 82]])
    found = -made.get_variable_value("x")[0, :, :, 0]
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_gradient_of_quantization(axis):
    values = np.linspace(-2, 2, 9, dtype="float32").reshape(3, 3)

    def gradients():
        x = tf.constant(values)
        least, most = tf.constant(-1.0), tf.constant(1.5)
        if axis != -1:
            least = tf.constant([-1.0, -0.5, 0.0])
            most = tf.constant([0.0, 1.0, 1.5])
        y = tf.raw_ops.QuantizeAndDequantizeV4(
            input=x,
            input_min=least,
            input_max=most,
            range_given=True,
            axis=axis,
        )
        loss = tf.reduce_sum(y * tf.reshape(tf.range(9.0), [3, 3]))
        with tf.Session() as session:
            return session.run(tf.gradients(loss, [x, least, most]))

    with tf.Graph().as_default():
        expected = gradients()
    with tf.Graph().as_default() as graph, internals.for_xla(graph):
        found = gradients()
        kinds = {op.type for op in graph.get_operations()}
    assert "QuantizeAndDequantizeV4Grad" not in kinds
    for each, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(each, other)
