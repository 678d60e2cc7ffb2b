"""Tests that errors about unsupported operations have their name and line."""

import keras_tpu_estimator as kte  # isort: skip

import inspect

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
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


@pytest.mark.parametrize(
    ("network", "name", "reason"),
    [
        (calls_python, "sine", "a PyFunc, which calls Python"),
        (calls_python_in_a_condition, "if", "a PyFunc, which calls"),
        (has_strings, "text", "a AsString with strings"),
        (looks_up, "hash_table", "a HashTableV2 with a resource that is no"),
        (permutes, "permuted", "a CollectivePermute. CrossReplicaSum is"),
    ],
)
def test_operations_that_no_device_supports_are_refused(
    tmp_path, network, name, reason
):
    with pytest.raises(ValueError, match="operations that a device") as e:
        evaluate(network, tmp_path)
    message = str(e.value)
    assert f"{name}, {reason}" in message
    _, start = inspect.getsourcelines(network)
    lines = range(start, start + 6)
    assert any(f"{__file__}:{line}" in message for line in lines)


def test_ref_variable_is_refused(tmp_path):
    def network(x):
        tf.disable_resource_variables()
        try:
            return x * tf.get_variable("ref", [2])
        finally:
            tf.enable_resource_variables()

    with pytest.raises(ValueError, match="ref, a VariableV2, which is not a resource"):
        evaluate(network, tmp_path)


def test_operations_unknown_to_the_bridge_are_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot compile") as e:
        evaluate(dilated, tmp_path)
    assert f"dilated (Dilation2D), made at {__file__}" in str(e.value)


def test_output_without_a_fixed_shape_is_refused(tmp_path):
    with pytest.raises(ValueError, match="fixed shapes") as e:
        evaluate(
            lambda x: tf.boolean_mask(x, x[:, 0] > 0),
            tmp_path,
            kte.ModeKeys.PREDICT,
        )
    assert f"made at {__file__}" in str(e.value)


def test_unknown_variable_is_refused(tmp_path):
    def network(x):
        return x * variable("own", 2, collections=["mine"])

    with pytest.raises(ValueError, match=r"global variables.*\['own'\]"):
        evaluate(network, tmp_path)


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


def test_scalar_output_that_is_concatenated_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match=r"scalar at \['y'\]"):
        evaluate(tf.reduce_sum, tmp_path, kte.ModeKeys.PREDICT, use_tpu=True)


def converted(function):
    """The converted module of a function of a matrix."""
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [3, 3])
        return Pruned.of(graph, [x], [function(x)]).compiled().module


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
        pruned = Pruned.of(graph, [x], [y])
    line = network.__code__.co_firstlineno + 1
    assert pruned.line_of("wide") == (__file__, line)
    assert pruned.line_of("no_such_operation") is None
    # It is inside a function, or the graph has several with that name.
    assert pruned.line_of("s") is None


def dilated(x):
    return tf.nn.dilation2d(
        x[None, :, :, None],
        np.zeros((1, 1, 1), "float32"),
        strides=[1, 1, 1, 1],
        padding="SAME",
        rates=[1, 1, 1, 1],
        name="dilated",
    )


def shaped_by_values(x):
    return tf.reshape(x, tf.cast(x[0, :2], tf.int32), name="shaped")


def of_complex_numbers(x):
    return tf.abs(tf.linalg.svd(tf.complex(x, x))[0])


def dilated_in_a_condition(x):
    return tf.cond(
        tf.reduce_sum(x) > 0, lambda: dilated(x), lambda: x[None, :, :, None]
    )


NO_DILATION = "XLA does not have Dilation2D. They need"


@pytest.mark.parametrize(
    ("network", "what", "advice"),
    [
        (dilated, "dilated (Dilation2D), made at ", f"{NO_DILATION} no"),
        (
            lambda x: dilated(x * tf.get_variable("w", [2])),
            "dilated (Dilation2D), made at ",
            f"{NO_DILATION} variables, so input_fn cannot run them: write",
        ),
        (
            dilated_in_a_condition,
            "dilated_0 (Dilation2D) in cond (StatelessIf), made at ",
            NO_DILATION,
        ),
        (
            shaped_by_values,
            "shaped (Reshape), made at ",
            "Input 1 of shaped is a shape, a size or an axis that depends on values",
        ),
        (
            of_complex_numbers,
            "Svd (Svd), made at ",
            "XLA has the operation, but not with T=DT_COMPLEX64",
        ),
        (
            lambda x: tf.setdiff1d(x[0], x[1])[0],
            "ListDiff (ListDiff), made at ",
            "Cast its inputs to another dtype, such as tf.int32.",
        ),
    ],
    ids=["missing", "of_variables", "in_condition", "constant", "dtype", "floats"],
)
def test_errors_of_conversion_end_with_xlas_message(network, what, advice):
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [16, 2])
        y = tf.reduce_sum(network(x))
        with pytest.raises(ValueError, match="cannot compile") as e:
            Pruned.of(graph, [x], [y]).compiled()
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
        pruned = Pruned.of(graph, [], [y])
    error = refusals.explained(
        ValueError("An unknown reason."), pruned.ops, pruned.body, pruned.library
    )
    with pytest.raises(
        ValueError,
        match=rf"cannot compile an operation of model_fn{named}\..*"
        r"XLA's message: An unknown reason\.$",
    ):
        raise error


def test_error_names_the_operation_of_a_gradient():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [1, 4, 4, 1])
        with graph.gradient_override_map({"Tanh": "MissingGradient"}):
            y = tf.tanh(x, name="forward")
        (grad,) = tf.gradients(y, x)
        with pytest.raises(ValueError, match="cannot compile") as e:
            Pruned.of(graph, [x], [grad]).compiled()
    assert "as the gradient of forward, made at" in str(e.value)


@tf.RegisterGradient("MissingGradient")
def _missing_gradient(op, grad):
    zeros = np.zeros((1, 1, 1), "float32")
    return grad * tf.nn.dilation2d(
        op.inputs[0],
        zeros,
        strides=[1, 1, 1, 1],
        padding="SAME",
        rates=[1, 1, 1, 1],
    )
