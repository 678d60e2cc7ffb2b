"""Tests that TensorFlow's private parts are as this package needs them."""

import keras_tpu_estimator  # isort: skip  # noqa: F401

from contextlib import nullcontext

import pytest
import tensorflow.compat.v1 as tf
from tf1_modules import hlo_of, imported_from

from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.lift import jax_internals


def test_graph_knows_its_number_of_cores():
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
def test_whole_variables_disables_partitioning(are_whole):
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
def test_names_of_variables_in_a_saver(as_dict):
    with tf.Graph().as_default():
        a, b = tf.get_variable("a", [2]), tf.get_variable("s/b", [2])
        saver = tf.train.Saver({"x": a, "s/b": b} if as_dict else None)
    names = {"x": "a"} if as_dict else {"a": "a"}
    assert internals.saved_names(saver) == {**names, "s/b": "s/b"}


@pytest.mark.parametrize(("is_for_xla", "moved"), [(True, 0), (False, 1)])
def test_xla_can_compile_gradients_of_loops(is_for_xla, moved):
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


@pytest.mark.parametrize(("end", "bound"), [(5, 5), (None, -1)])
def test_loops_have_a_bound_if_it_is_known(end, bound):
    graph = tf.Graph()
    with graph.as_default(), internals.for_xla(graph):
        last = tf.placeholder(tf.int32, []) if end is None else end
        tf.while_loop(lambda i: i < last, lambda i: i + 1, [0])
    (loop,) = [op for op in graph.get_operations() if "While" in op.type]
    assert tf.get_static_value(loop.inputs[1]) == bound


def test_scopes_only_check_what_is_kept():
    with tf.Graph().as_default():
        other = tf.no_op()
    with tf.Graph().as_default():
        here = tf.no_op()
        with internals.scopes_of(lambda values: [here]):
            with tf.name_scope("a", values=[here, other]) as scope:
                assert scope == "a/"
        with pytest.raises(ValueError, match="must be from the same graph"):
            with tf.name_scope("a", values=[here, other]):
                pass


def test_inputs_of_other_graphs_are_checked():
    with tf.Graph().as_default():
        other = tf.constant(1.0)
    seen = []
    with tf.Graph().as_default() as here:
        with internals.inputs_checked(lambda *given: seen.append(given)):
            tf.identity(other)
            tf.constant(1.0) + 1.0
    assert seen == [(here, other)]


def test_operation_has_an_attribute_of_strings():
    with tf.Graph().as_default():
        made = tf.no_op()
        internals.set_strings(made, "_own", ["a", "b"])
        assert made.get_attr("_own") == [b"a", b"b"]


def test_functions_are_registered_temporarily():
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
        module = jax_internals.stablehlo_of(hlo_of(imported, [2]))
    assert "stablehlo.if" in jax_internals.op_names(module)
    with pytest.raises(ValueError, match="_renamed is not defined"):
        hlo_of(imported, [2])


def test_control_inputs_are_replaced():
    with tf.Graph().as_default() as graph:
        a, b = tf.no_op("a"), tf.no_op("b")
        with tf.control_dependencies([a]):
            c = tf.no_op("c")
        internals.set_control_inputs(c, [b])
    assert [each.name for each in c.control_inputs] == ["b"]
    (node,) = [n for n in graph.as_graph_def().node if n.name == "c"]
    assert [*node.input] == ["^b"]
