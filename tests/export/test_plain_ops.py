"""Graphs in ops that other runtimes know."""

import numpy as np
import tensorflow as tf  # noqa: TID253 - its graphs are rewritten

from keras_tpu_estimator.export.plain_ops import in_plain_ops

X = np.array([[-1.5, 0.0, -0.0, 2.5], [3.0, -4.0, 0.5, 3.0]], "float32")


def made_plain(function, dtype="float32"):
    """The types of its ops, and a function that runs them."""
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
    """As Keras finds the place of a maximum on TensorFlow."""
    bits = tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), tf.int32.min)
    is_negative_zero = tf.logical_and(tf.equal(x, 0.0), tf.less(bits, 0))
    x = tf.where(is_negative_zero, -np.finfo("float32").tiny, x)
    return find(tf.reshape(x, [-1]), output_type=tf.int32)


def test_places_are_found_without_bits():
    for find, place in ((tf.argmax, 4), (tf.argmin, 5)):
        ops, run = made_plain(lambda x, find=find: of_keras(find, x))
        assert not ops & {"Bitcast", "SelectV2", "BitwiseAnd"}
        assert run(X) == place


def test_a_choice_of_ones_own_stays():
    def chosen(x):
        return tf.argmax(tf.where(x > 2.0, -1.0, x), axis=-1)

    ops, run = made_plain(chosen)
    assert "SelectV2" in ops
    np.testing.assert_array_equal(run(X), [1, 2])


def test_bits_that_are_wanted_stay():
    ops, run = made_plain(lambda x: tf.bitcast(x, tf.int32))
    assert "Bitcast" in ops
    np.testing.assert_array_equal(run(X), X.view("int32"))


def test_the_complement_of_the_error_function():
    for dtype, error in (("float32", 1e-6), ("float64", 1e-12)):
        for function in (tf.math.erfc, lambda x: tf.math.erfc(-x)):
            ops, run = made_plain(function, dtype)
            assert "Erfc" not in ops
            expected = function(X.astype(dtype))
            np.testing.assert_allclose(run(X), expected, error, error)


def test_gelu_has_the_form_that_is_known():
    ops, run = made_plain(lambda x: tf.nn.gelu(x, approximate=False))
    assert {"AddV2", "Erf"} <= ops
    assert not ops & {"Erfc", "Sub"}
    expected = tf.nn.gelu(X, approximate=False)
    np.testing.assert_allclose(run(X), expected, 1e-5, 1e-6)


def test_what_nothing_reads_is_left_out():
    def unread(x):
        tf.sqrt(x)
        return tf.identity(x)

    ops, _ = made_plain(unread)
    assert "Sqrt" not in ops
