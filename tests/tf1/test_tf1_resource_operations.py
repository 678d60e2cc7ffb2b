"""Tests that operations on variables that XLA lacks run on devices."""

import keras_tpu_estimator as kte  # isort: skip

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import kernels
from tf1_programs import assert_same, estimator, fed, run_in_session, trained, values_of

from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.lift.replaced_ops import PLAIN, is_sparse_update

RESOURCE = tf.resource.as_datatype_enum
# TF1 graphs never contain these, or they raise an error at a limit.
OTHERS = {
    "ResourceApplyAdamWithAmsgrad",
    "ResourceCountUpTo",
    "ResourceCreateOp",
    "ResourceInitializedOp",
    "ResourceUsingOp",
}


def operations():
    """The definitions of all operations."""
    buffer = pywrap_tf_session.TF_GetAllOpList()
    found = op_def_pb2.OpList()
    found.ParseFromString(pywrap_tf_session.TF_GetBuffer(buffer))
    return found.op


@functools.cache
def load_kernels():
    """Makes TensorFlow register XLA's kernels by compiling a function."""
    with internals.eagerly():
        tf.function(lambda x: x + 1, jit_compile=True)(1.0)


def has_xla(name):
    """Whether the bridge to XLA has an operation."""
    load_kernels()
    registered = kernels.get_registered_kernels_for_op(name).kernel
    return any(each.device_type == "XLA_CPU_JIT" for each in registered)


def test_table_has_all_operations_on_variables():
    names = {
        each.name
        for each in operations()
        if each.name.startswith("Resource")
        and not each.name.startswith("ResourceAccumulator")
        and any(arg.type == RESOURCE for arg in each.input_arg)
    }
    without = {each for each in names if not has_xla(each)}
    sparse = {
        each for each in without if is_sparse_update(tf.NodeDef(op=each, name="n"))
    }
    assert "ResourceGather" in names - without
    assert without - sparse == {*PLAIN, *OTHERS}


INDICES = [[0, 1], [2, 2], [0, 1]]


def gathered(table):
    return tf.gather_nd(table, INDICES)


def gathered_in_a_loop(table):
    return tf.while_loop(
        lambda i, total: i < 3,
        lambda i, total: (i + 1, total + gathered(table)),
        [0, tf.zeros([3])],
    )[1]


def gathered_in_a_condition(table):
    return tf.cond(tf.reduce_sum(table) > 0, lambda: gathered(table), lambda: table[0])


def gathered_after_writes(table):
    """Rows after one write, and rows after a later write."""
    new = tf.assign_add(table, tf.ones([3, 3]))
    with tf.control_dependencies([new]):
        first = gathered(table)
    with tf.control_dependencies([first]):
        newest = tf.assign(table, table * 2)
    with tf.control_dependencies([newest]):
        return first + 3 * gathered(table)


def scattered(operation):
    """A network that scatters maxima or minima into rows."""

    def network(table):
        written = operation(
            ref=table.handle, indices=[[0, 1], [2, 2]], updates=[0.35, 0.5]
        )
        with tf.control_dependencies([written]):
            return table.read_value()

    return network


def program(network):
    """A model_fn whose loss is a sum of squares of a variable's values."""

    def model_fn(features, labels, mode, params):
        start = np.arange(9, dtype="float32").reshape(3, 3) / 10
        table = tf.get_variable(
            "table", [3, 3], initializer=tf.constant_initializer(start)
        )
        made = network(table)
        if mode == kte.ModeKeys.PREDICT:
            rows = tf.zeros([tf.shape(features)[0], 1])
            predictions = {"y": rows + tf.reshape(made, [1, -1])}
            return kte.tf1.TPUEstimatorSpec(mode, predictions=predictions)
        loss = tf.reduce_sum(tf.square(made))
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        step = tf.train.get_or_create_global_step()
        gradients = optimizer.compute_gradients(loss)
        if gradients[0][0] is None:
            train_op = tf.group(loss, tf.assign_add(step, 1))
        else:
            train_op = optimizer.apply_gradients(gradients, step)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


X = np.ones((16, 2), "float32")


@pytest.mark.parametrize(
    "network",
    [
        gathered,
        gathered_in_a_loop,
        gathered_in_a_condition,
        gathered_after_writes,
        scattered(tf.raw_ops.ResourceScatterNdMax),
        scattered(tf.raw_ops.ResourceScatterNdMin),
    ],
    ids=["plain", "loop", "condition", "after_writes", "max", "min"],
)
def test_values_match_a_session(tmp_path, network):
    data = [(X,)] * 2
    model_fn = program(network)

    def without_labels(features, mode, params):
        return model_fn(features, None, mode, params)

    _, expected = run_in_session(without_labels, data)
    assert_same(trained(model_fn, tmp_path, [X] * 2), expected)


def test_each_mode_and_an_export_match_tensorflow(tmp_path):
    made = estimator(program(gathered), tmp_path / "model")
    made.train(fed([X, X]), steps=2)
    # From this program in TensorFlow 1.15.5.
    table = values_of(made)["table"]
    np.testing.assert_allclose(table[0, 1], 0.036, rtol=1e-5)
    np.testing.assert_allclose(table[2, 2], 0.512, rtol=1e-5)
    own = [table[0, 1], table[2, 2], table[0, 1]]
    loss = np.sum(np.square(own))
    assert np.isclose(made.evaluate(fed([X]))["loss"], loss, rtol=1e-5)
    rows = [each["y"] for each in made.predict(fed([X]))]
    np.testing.assert_allclose(rows, [own] * 16, rtol=1e-6)
    path = made.export_saved_model(str(tmp_path / "export"), receiver)
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.load(session, ["serve"], str(path))
        outputs = loaded.signature_def["serving_default"].outputs
        (output,) = outputs.values()
        served = session.run(output.name, {"features:0": X[:3]})
    np.testing.assert_allclose(served, [own] * 3, rtol=1e-6)


def receiver():
    """A receiver of features as a TF1 script builds it."""
    features = tf.placeholder(tf.float32, [None, 2], "features")
    return kte.export.TensorServingInputReceiver(features, {"features": features})


def test_conditional_random_field_matches_tensorflow(tmp_path):
    kte.tf1.install()
    from tensorflow.contrib import crf

    rng = np.random.RandomState(0)
    x = rng.randn(4, 5, 3).astype("float32")
    y = rng.randint(0, 3, (4, 5)).astype("int32")
    lengths = np.array([5, 4, 3, 5], "int32")

    def model_fn(features, labels, mode, params):
        start = tf.constant_initializer(np.arange(9).reshape(3, 3) / 10)
        field = tf.get_variable("trans", [3, 3], initializer=start)
        x, lengths = features["x"], features["lengths"]
        if mode == kte.ModeKeys.PREDICT:
            tags, score = crf.crf_decode(x, field, lengths)
            predictions = {"tags": tags, "score": score}
            return kte.tf1.TPUEstimatorSpec(mode, predictions=predictions)
        likelihood, _ = crf.crf_log_likelihood(x, labels, lengths, field)
        loss = -tf.reduce_mean(likelihood)
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    features = {"x": x, "lengths": lengths}
    made = estimator(model_fn, tmp_path)
    made.train(fed([(features, y)] * 2), steps=2)
    # From this program in TensorFlow 1.15.5.
    expected = [-0.064168, 0.089224, 0.187999, 0.202707, 0.337602]
    expected += [0.532921, 0.667614, 0.720488, 0.925615]
    field = values_of(made)["trans"]
    np.testing.assert_allclose(field.ravel(), expected, atol=2e-6)
    made = estimator(model_fn, tmp_path)
    rows = [*made.predict(fed([features]))]
    tags = [[0, 1, 2, 2, 0], [1, 0, 1, 0, 0], [1, 2, 1, 0, 0], [2, 1, 0, 2, 0]]
    assert [row["tags"].tolist() for row in rows] == tags
    scores = [7.959076, 5.435974, 2.9903, 3.099448]
    np.testing.assert_allclose([r["score"] for r in rows], scores, rtol=1e-5)
