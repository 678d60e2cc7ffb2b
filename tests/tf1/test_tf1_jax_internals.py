"""Tests that JAX's private parts are as this package needs them."""

import keras_tpu_estimator  # isort: skip  # noqa: F401

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_modules import hlo_of, imported_from, primitive_of

from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.lift import jax_internals, primitive


def test_a_module_has_a_signature_and_ops():
    module = jax_internals.stablehlo_of(hlo_of(lambda x: tf.nn.top_k(x, 2), [3]))
    assert jax_internals.signature_of(module) == (
        ["tensor<3xf32>"],
        ["tensor<2xf32>", "tensor<2xi32>"],
    )
    assert "stablehlo.sort" in jax_internals.op_names(module)


def test_custom_call_is_named_by_its_target():
    module = jax_internals.stablehlo_of(hlo_of(lambda x: tf.linalg.qr(x), [3, 3]))
    assert "stablehlo.custom_call Qr" in jax_internals.op_names(module)


def test_a_module_has_no_copies():
    with internals.eagerly():
        variable = tf.Variable([1, 2], use_resource=True)

    def function(x):
        variable.assign_add(x)
        return variable.read_value()

    with internals.eagerly():
        module = jax_internals.stablehlo_of(hlo_of(function, [2], dtype=tf.int32))
    # Otherwise XLA refuses it for a TPU.
    names = jax_internals.op_names(module)
    assert "stablehlo.add" in names
    assert "mhlo.copy" not in names


def test_types_of_a_module_include_all_its_ops():
    module = jax_internals.stablehlo_of(
        hlo_of(lambda x: tf.cast(tf.cast(x, tf.float64) ** 2, tf.int32), [3])
    )
    assert {"f32", "f64", "i32"} <= jax_internals.element_types(module)


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
    aval = jax_internals.aval_of(kind)
    assert (aval.shape, aval.dtype) == (shape, dtype)


@pytest.mark.parametrize(
    "kind", ["tensor<?xf32>", "tensor<?xf32, #stablehlo.bounds<4>>"]
)
def test_a_type_without_a_fixed_shape_is_an_error(kind):
    with pytest.raises(ValueError, match="a fixed shape"):
        jax_internals.aval_of(kind)


def test_a_module_is_inlined_with_64_bits_inside():
    def function(x):
        wide = tf.cast(x, tf.int64) * 2**33
        return tf.cast(wide // 2**32, tf.int64), tf.cast(wide, tf.float32)

    module = jax_internals.stablehlo_of(hlo_of(function, [2]))
    _, results = jax_internals.signature_of(module)
    avals = [jax_internals.aval_of(kind) for kind in results]
    bound = primitive_of(module, avals)
    run = jax.jit(lambda x: bound.bind(x))
    whole, wide = run(jnp.array([1.0, 3.0]))
    assert whole.dtype == "int32" and whole.tolist() == [2, 6]
    assert wide.tolist() == [2.0**33, 3 * 2.0**33]


def test_operations_are_replaced():
    seen = []

    def replacement(op):
        if op.name != primitive.ALL_REDUCE:
            return None
        seen.append(primitive.groups_of(op))
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

    module = jax_internals.stablehlo_of(hlo_of(imported, [2]))
    bound = primitive_of(module, [jax_internals.aval_of("tensor<2xf32>")], replacement)
    (result,) = jax.jit(lambda x: bound.bind(x))(np.ones(2, "float32"))
    assert result.tolist() == [10, 10]
    assert seen == [[[0, 1], [3, 2]]]
