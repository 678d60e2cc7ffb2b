"""Tests that errors about unsupported operations have their name and line."""

import keras_tpu_estimator as kte  # isort: skip

import inspect

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers import refused
from tf1_programs import estimator, fed, variable

from keras_tpu_estimator.tf1.lift import refusals
from keras_tpu_estimator.tf1.lift.lifting import Pruned
from keras_tpu_estimator.tf1.lift.refusals import check_platform

X = np.ones((16, 2), "float32")


def evaluate(network, tmp_path, mode=kte.ModeKeys.EVAL, **settings):
    """Evaluates or predicts a function of the features."""

    def model_fn(features, labels, mode, params):
        made = network(features)
        if mode == kte.ModeKeys.PREDICT:
            return kte.tf1.TPUEstimatorSpec(mode, predictions={"y": made})
        return kte.tf1.TPUEstimatorSpec(mode, loss=tf.reduce_sum(made))

    made = estimator(model_fn, tmp_path, **settings)
    if mode == kte.ModeKeys.PREDICT:
        return list(made.predict(fed([X])))
    return made.evaluate(fed([X]))


def calls_python(x):
    return tf.py_func(np.sin, [x], tf.float32, name="sine")


def calls_python_in_a_condition(x):
    return tf.cond(x[0, 0] > 0, lambda: calls_python(x), lambda: x, name="if")


def has_strings(x):
    return tf.string_to_number(tf.as_string(x, name="text"))


def looks_up(x):
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a"], [2.0]), 0.0
    )
    return x * table.lookup(tf.constant("a"))


def permutes(x):
    return tf.raw_ops.CollectivePermute(
        input=x, source_target_pairs=[[0, 0]], name="permuted"
    )


def dilated(x):
    return tf.nn.dilation2d(
        x[None, :, :, None],
        np.zeros((1, 1, 1), "float32"),
        strides=[1, 1, 1, 1],
        padding="SAME",
        rates=[1, 1, 1, 1],
        name="dilated",
    )


def masked(x):
    return tf.boolean_mask(x, x[:, 0] > 0)


def has_a_ref_variable(x):
    tf.disable_resource_variables()
    try:
        return x * tf.get_variable("ref", [2])
    finally:
        tf.enable_resource_variables()


PREDICT = kte.ModeKeys.PREDICT


@pytest.mark.parametrize(
    ("network", "settings", "error", "words"),
    [
        (calls_python, {}, ValueError, "device sine, PyFunc, Python FILE"),
        (calls_python_in_a_condition, {}, ValueError, "device if, PyFunc, FILE"),
        (has_strings, {}, ValueError, "device text, AsString strings FILE"),
        (looks_up, {}, ValueError, "device hash_table, HashTableV2 resource FILE"),
        (permutes, {}, ValueError, "permuted, CollectivePermute. CrossReplicaSum FILE"),
        (has_a_ref_variable, {}, ValueError, "ref, VariableV2, not a resource"),
        (dilated, {}, ValueError, "compile dilated (Dilation2D), FILE"),
        (masked, {"mode": PREDICT}, ValueError, "fixed shapes FILE"),
        (
            tf.reduce_sum,
            {"mode": PREDICT, "use_tpu": True},
            RuntimeError,
            "scalar ['y']",
        ),
    ],
)
def test_unsupported_operations_are_named(tmp_path, network, settings, error, words):
    with refused(error, words.partition("FILE")[0]) as caught:
        evaluate(network, tmp_path, **settings)
    if "FILE" in words:
        _, start = inspect.getsourcelines(network)
        lines = range(start, start + 6)
        message = str(caught.value)
        assert any(f"{__file__}:{line}" in message for line in lines)


@pytest.mark.parametrize(
    "setting",
    [{"micro_batches": 2}, {"remat": "full"}, {"dtype_policy": "float32"}],
)
def test_unsupported_settings_of_graphs_are_refused(tmp_path, setting):
    with pytest.raises(NotImplementedError, match=next(iter(setting))):
        evaluate(lambda x: x, tmp_path, config=setting)


def test_train_op_must_count_steps(tmp_path):
    def model_fn(features, labels, mode, params):
        scale = variable("scale", 2)
        loss = tf.reduce_sum(scale)
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    made = estimator(model_fn, tmp_path)
    with pytest.raises(ValueError, match=r"assigns \['scale'\]"):
        made.train(fed([X]), steps=1)


def converted(function):
    """The converted module of a function of a matrix."""
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [3, 3])
        return Pruned.from_graph(graph, [x], [function(x)]).compiled().module


@pytest.mark.parametrize(
    "function",
    [lambda x: tf.linalg.qr(x).q, lambda x: tf.linalg.eigh(x)[1]],
    ids=["qr", "eigh"],
)
@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_calls_that_xla_expands_everywhere(function, platform):
    check_platform(converted(function), platform)


def test_custom_call_that_only_cpus_have_is_refused(monkeypatch):
    monkeypatch.setattr(refusals, "_EXPANDED", {"Eigh"})
    module = converted(lambda x: tf.linalg.qr(x).q)
    check_platform(module, "cpu")
    with pytest.raises(ValueError, match="'gpu'.*'Qr'"):
        check_platform(module, "gpu")


def test_dtypes_that_tpus_lack_are_refused():
    def function(x):
        wide = tf.cast(tf.complex(x, x), tf.complex128)
        return tf.cast(tf.abs(wide), tf.float32)

    module = converted(function)
    check_platform(module, "cpu")
    check_platform(module, "gpu")
    with pytest.raises(ValueError, match="complex128.*complex64"):
        check_platform(module, "tpu")


def test_operations_have_lines_by_name():
    def network(x):
        wide = tf.tanh(x, name="wide")  # This line.
        return tf.cond(x[0, 0] > 0, lambda: tf.sin(wide, "s"), lambda: wide)

    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [16, 2], "x")
        y = network(x)
        pruned = Pruned.from_graph(graph, [x], [y])
    line = network.__code__.co_firstlineno + 1
    assert pruned.line_of("wide") == (__file__, line)
    assert pruned.line_of("no_such_operation") is None
    # It is inside a function, or the graph has several with that name.
    assert pruned.line_of("s") is None


def shaped_by_values(x):
    return tf.reshape(x, tf.cast(x[0, :2], tf.int32), name="shaped")


def of_complex_numbers(x):
    return tf.abs(tf.linalg.svd(tf.complex(x, x))[0])


def dilated_in_a_condition(x):
    return tf.cond(
        tf.reduce_sum(x) > 0, lambda: dilated(x), lambda: x[None, :, :, None]
    )


NO_DILATION = "XLA, the compiler of the devices, lacks it. This operation"


@pytest.mark.parametrize(
    ("network", "what", "advice"),
    [
        (dilated, "dilated (Dilation2D)", f"{NO_DILATION} can run before"),
        (
            lambda x: dilated(x * tf.get_variable("w", [2])),
            "dilated (Dilation2D)",
            f"{NO_DILATION} cannot move into input_fn, because its inputs depend",
        ),
        (
            dilated_in_a_condition,
            "dilated_0 (Dilation2D) in cond (StatelessIf)",
            NO_DILATION,
        ),
        (shaped_by_values, "shaped (Reshape)", "Input 1 of shaped is a shape"),
        (of_complex_numbers, "Svd (Svd)", "not with T=DT_COMPLEX64"),
        (lambda x: tf.setdiff1d(x[0], x[1])[0], "ListDiff (ListDiff)", "tf.int32."),
    ],
    ids=["missing", "of_variables", "in_condition", "constant", "dtype", "floats"],
)
def test_errors_of_conversion_end_with_xlas_message(network, what, advice):
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [16, 2])
        y = tf.reduce_sum(network(x))
        with pytest.raises(ValueError, match="cannot compile") as e:
            Pruned.from_graph(graph, [x], [y]).compiled()
    message = str(e.value)
    places = [message.index(each) for each in (what, __file__, advice)]
    places.append(message.index("XLA's message: "))
    assert places == sorted(places)
    assert "dummy" not in message
    assert "tf2xla" not in message


@pytest.mark.parametrize(
    ("network", "named"),
    [
        (
            lambda x: tf.boolean_mask(x, x > 0),
            rf", perhaps .*Where \(Where\), whose shape.*, made at {__file__}:\d+",
        ),
        (tf.sin, ""),
    ],
)
def test_message_without_an_operation_names_unknown_shapes(network, named):
    with tf.Graph().as_default() as graph:
        y = network(tf.placeholder(tf.float32, [4]))
        pruned = Pruned.from_graph(graph, [], [y])
    error = refusals.explained(
        ValueError("An unknown reason."), pruned.ops, pruned.body, pruned.library
    )
    with pytest.raises(ValueError, match=rf"{named}\..*An unknown reason\.$"):
        raise error


def test_error_names_the_operation_of_a_gradient():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [1, 4, 4, 1])
        with graph.gradient_override_map({"Tanh": "MissingGradient"}):
            y = tf.tanh(x, name="forward")
        (grad,) = tf.gradients(y, x)
        with pytest.raises(ValueError, match="cannot compile") as e:
            Pruned.from_graph(graph, [x], [grad]).compiled()
    assert "as the gradient of forward, made at" in str(e.value)


@tf.RegisterGradient("MissingGradient")
def _missing_gradient(op, grad):
    return grad * dilated(op.inputs[0][0, :, :, 0])
