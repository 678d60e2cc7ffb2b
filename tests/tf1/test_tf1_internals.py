"""The private parts of TensorFlow and JAX are as this package needs them."""

import keras_tpu_estimator  # isort: skip  # noqa: F401

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_modules import hlo_of
from tf1_modules import primitive_of

from keras_tpu_estimator.tf1 import internals
from keras_tpu_estimator.tf1 import module_ops


def test_a_graph_is_told_how_many_cores_will_run_it():
    with tf.Graph().as_default(), internals.shards(3):
        total = tf.tpu.cross_replica_sum(tf.constant(1.0))
    groups = tf.get_static_value(total.op.inputs[1])
    assert groups.tolist() == [[0, 1, 2]]


def test_tensorflow_runs_eagerly_inside_a_graph():
    with tf.Graph().as_default():
        with internals.eagerly():
            assert tf.executing_eagerly()
            assert float(tf.constant(1.0) + 1.0) == 2.0
        assert not tf.executing_eagerly()


@pytest.mark.parametrize("are_whole", [True, False])
def test_variables_are_whole_when_they_are_to_be(are_whole):
    known = internals.whole_variables() if are_whole else nullcontext()
    parts = tf.fixed_size_partitioner(2)
    with tf.Graph().as_default(), known:
        tf.get_variable("a", [2], partitioner=parts)
        with tf.variable_scope("s", partitioner=parts):
            tf.get_variable("b", [2])
        names = [variable.op.name for variable in tf.global_variables()]
    whole, both = ["a", "s/b"], ["/part_0", "/part_1"]
    assert names == (
        whole if are_whole else [name + part for name in whole for part in both]
    )


@pytest.mark.parametrize("as_dict", [False, True])
def test_the_names_that_a_saver_has_for_variables(as_dict):
    with tf.Graph().as_default():
        a, b = tf.get_variable("a", [2]), tf.get_variable("s/b", [2])
        saver = tf.train.Saver({"x": a, "s/b": b} if as_dict else None)
    names = {"x": "a"} if as_dict else {"a": "a"}
    assert internals.saved_names(saver) == {**names, "s/b": "s/b"}


@pytest.mark.parametrize(("is_for_xla", "moved"), [(True, 0), (False, 1)])
def test_gradients_of_loops_can_be_such_as_xla_compiles(is_for_xla, moved):
    graph = tf.Graph()
    known = internals.for_xla(graph if is_for_xla else None)
    with graph.as_default(), known:
        x = tf.placeholder(tf.float32, [5, 2])
        listed = tf.TensorArray(tf.float32, 5).unstack(x)
        _, total = tf.while_loop(
            lambda i, _: i < 5,
            lambda i, total: (i + 1, total * listed.read(i)),
            (0, tf.ones(2)),
            maximum_iterations=5,
        )
        tf.gradients(total, x)
    names = [op.name for op in graph.get_operations()]
    found = [n for n in names if n.endswith("TensorListLength_0/accumulator")]
    assert len(found) == moved


def imported_from(definition, x):
    """What a definition makes of its only placeholder, which is the first."""
    rest = tf.GraphDef()
    rest.CopyFrom(definition)
    del rest.node[0]
    return tf.graph_util.import_graph_def(rest, {"x:0": x}, ["y:0"])


def test_functions_are_known_for_a_while():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [2], name="x")
        chosen = tf.cond(x[0] > 0, lambda: x + 1, lambda: x, name="if")
        tf.identity(chosen, name="y")
    definition = graph.as_graph_def()
    for node in definition.node:
        for name in ("then_branch", "else_branch"):
            if name in node.attr:
                node.attr[name].func.name += "_renamed"
    for function in definition.library.function:
        function.signature.name += "_renamed"

    def imported(x):
        return imported_from(definition, x)

    with internals.functions_known(definition.library.function):
        module = internals.stablehlo_of(hlo_of(imported, [2]))
    assert "stablehlo.if" in internals.op_names(module)
    with pytest.raises(ValueError, match="_renamed is not defined"):
        hlo_of(imported, [2])


def test_a_module_has_a_signature_and_ops():
    module = internals.stablehlo_of(hlo_of(lambda x: tf.nn.top_k(x, 2), [3]))
    assert internals.signature_of(module) == (
        ["tensor<3xf32>"],
        ["tensor<2xf32>", "tensor<2xi32>"],
    )
    assert "stablehlo.sort" in internals.op_names(module)


def test_a_custom_call_is_named_by_its_target():
    module = internals.stablehlo_of(hlo_of(lambda x: tf.linalg.qr(x), [3, 3]))
    assert "stablehlo.custom_call Qr" in internals.op_names(module)


@pytest.mark.parametrize(
    ("kind", "shape", "dtype"),
    [
        ("tensor<f32>", (), "float32"),
        ("tensor<2x3xbf16>", (2, 3), "bfloat16"),
        ("tensor<4xi64>", (4,), "int32"),
        ("tensor<1xi1>", (1,), "bool"),
        ("tensor<0xui8>", (0,), "uint8"),
    ],
)
def test_types_are_shapes_and_dtypes(kind, shape, dtype):
    aval = internals.aval_of(kind)
    assert (aval.shape, aval.dtype) == (shape, dtype)


@pytest.mark.parametrize(
    "kind", ["tensor<?xf32>", "tensor<?xf32, #stablehlo.bounds<4>>"]
)
def test_a_type_without_a_fixed_shape_is_an_error(kind):
    with pytest.raises(ValueError, match="a fixed shape"):
        internals.aval_of(kind)


def test_a_module_is_inlined_with_64_bits_inside():
    def function(x):
        wide = tf.cast(x, tf.int64) * 2**33
        return tf.cast(wide // 2**32, tf.int64), tf.cast(wide, tf.float32)

    module = internals.stablehlo_of(hlo_of(function, [2]))
    _, results = internals.signature_of(module)
    avals = [internals.aval_of(kind) for kind in results]
    primitive = primitive_of(module, avals)
    run = jax.jit(lambda x: primitive.bind(x))
    whole, wide = run(jnp.array([1.0, 3.0]))
    assert whole.dtype == "int32" and whole.tolist() == [2, 6]
    assert wide.tolist() == [2.0**33, 3 * 2.0**33]


def test_operations_are_what_they_are_replaced_by():
    seen = []

    def replacement(op):
        if op.name != module_ops.ALL_REDUCE:
            return None
        seen.append(module_ops.groups_of(op))
        return lambda x: x * 10

    with tf.Graph().as_default() as graph, internals.shards(2):
        x = tf.placeholder(tf.float32, [2], name="x")
        tf.tpu.cross_replica_sum(x, [[0, 1], [3, 2]], name="y")
        definition = graph.as_graph_def()
    for node in definition.node:
        if node.op == "CrossReplicaSum":
            node.op = "XlaAllReduce"
            node.attr["reduce_op"].s = b"Add"
            node.attr["mode"].s = b"CrossReplica"

    def imported(x):
        return imported_from(definition, x)

    module = internals.stablehlo_of(hlo_of(imported, [2]))
    primitive = primitive_of(
        module, [internals.aval_of("tensor<2xf32>")], replacement
    )
    (result,) = jax.jit(lambda x: primitive.bind(x))(np.ones(2, "float32"))
    assert result.tolist() == [10, 10]
    assert seen == [[[0, 1], [3, 2]]]
