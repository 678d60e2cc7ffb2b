"""Tests the order of reads and writes without control dependencies."""

import keras_tpu_estimator as kte  # isort: skip

import graphlib
import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import estimator, fed

from keras_tpu_estimator.tf1.graph.definitions import Body, definition_of, source
from keras_tpu_estimator.tf1.lift.effects import effects_of

X = np.ones((16, 1), "float32")


def order_of(graph):
    """The effects of a graph, and all its nodes in a valid order."""
    known = definition_of(graph)
    nodes = [known.nodes[op.name] for op in graph.get_operations()]
    handles = [node.name for node in nodes if node.op == "VarHandleOp"]
    body = Body([n for n in nodes if n.name not in handles], [], handles)
    effects = effects_of(body, known.library)
    before = {
        node.name: {source(each) for each in node.input}
        | {*effects.earlier.get(node.name, ())}
        for node in nodes
    }
    return effects, [*graphlib.TopologicalSorter(before).static_order()]


@pytest.fixture
def variable():
    """A variable in a new graph."""
    with tf.Graph().as_default():
        yield tf.get_variable("v", [2], use_resource=True)


def minimized(variable):
    """Assigns a value that a step computes from the variable and its input."""
    given = tf.placeholder(tf.float32, [2], name="given")
    return variable.assign_sub(tf.exp(tf.sin(variable * given)))


def read_by(value):
    """The operation that reads the variable for a value."""
    while value.op.type not in ("ReadVariableOp", "ResourceGather"):
        value = value.op.inputs[0]
    return value.op.name


@pytest.mark.parametrize(
    "read",
    [
        lambda variable: variable.read_value(),
        lambda variable: tf.exp(variable + 1.0),
        lambda variable: tf.gather(variable, 0),
    ],
)
def test_read_with_fewer_dependencies_comes_first(variable, read):
    write = minimized(variable).op.name
    name = read_by(read(variable))
    effects, order = order_of(variable.graph)
    assert effects.last_writes == {"v": write}
    assert order.index(name) < order.index(write)


def test_read_that_depends_on_the_write_comes_after_it(variable):
    write = minimized(variable)
    with tf.control_dependencies([write]):
        name = read_by(variable.read_value())
    _, order = order_of(variable.graph)
    assert order.index(name) > order.index(write.op.name)


def test_write_without_dependencies_keeps_its_place(variable):
    write = variable.assign_add(tf.cast([1, 2], tf.float32)).op.name
    name = read_by(variable.read_value())
    effects, order = order_of(variable.graph)
    assert effects.earlier[name] == (write,)
    assert order.index(name) > order.index(write)


def test_read_comes_before_several_writes(variable):
    first = minimized(variable)
    with tf.control_dependencies([first]):
        second = variable.assign_add([1.0, 1.0])
    name = read_by(variable.read_value())
    last = variable.assign_add([1.0, 1.0])
    _, order = order_of(variable.graph)
    names = [name, first.op.name, second.op.name, last.op.name]
    places = [order.index(each) for each in names]
    assert places == sorted(places)


@pytest.mark.rows(8)
@pytest.mark.parametrize("seed", range(40))
def test_any_dependencies_have_an_order(seed):
    """Reads and writes with any dependencies are ordered without a cycle."""
    rng = np.random.default_rng(seed)
    with tf.Graph().as_default() as graph:
        variables = [tf.get_variable(name, [], use_resource=True) for name in "uvw"]
        values = [tf.placeholder(tf.float32, [], name="given")]
        for _ in range(30):
            variable = variables[rng.integers(3)]
            value = values[rng.integers(len(values))]
            waited = [values[rng.integers(len(values))].op]
            with tf.control_dependencies(waited * int(rng.integers(2))):
                kind = rng.integers(4)
                if kind == 0:
                    values.append(tf.sin(value))
                elif kind == 1:
                    values.append(variable.read_value())
                else:
                    write = variable.assign_add(value)
                    values.append(write.read_value())
    effects, order = order_of(graph)
    writes = [
        name
        for name, used in effects.used.items()
        if used and graph.get_operation_by_name(name).type[:6] == "Assign"
    ]
    before = dict(effects.earlier)
    for write, (name, used) in itertools.product(writes, effects.used.items()):
        (variable,) = [v for _, v in effects.used[write]]
        if name != write and (0, variable) in used:
            assert ordered(before, graph, write, name), (write, name)
    assert len(order) == len(graph.get_operations())


def ordered(before, graph, one, other):
    """Whether one of two operations depends on the other."""
    return waits(before, graph, one, other) or waits(before, graph, other, one)


def waits(before, graph, one, other):
    stack, seen = [one], set()
    while stack:
        name = stack.pop()
        if name == other:
            return True
        if name not in seen:
            seen.add(name)
            op = graph.get_operation_by_name(name)
            stack += [each.op.name for each in op.inputs]
            stack += [each.name for each in op.control_inputs]
            stack += before.get(name, ())
    return False


def test_summaries_and_hooks_see_the_values_before_the_step(tmp_path):
    seen = []

    class Seeing(tf.train.SessionRunHook):
        def before_run(self, run_context):
            return tf.train.SessionRunArgs(["rate:0", "old:0", "new:0"])

        def after_run(self, run_context, run_values):
            seen.append([float(each) for each in run_values.results])

    def model_fn(features, labels, mode, params):
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        step = tf.train.get_global_step()
        loss = tf.reduce_mean(tf.square(features * w - features))
        optimizer = tf.train.GradientDescentOptimizer(0.25)
        train_op = optimizer.minimize(loss, step)
        tf.identity(tf.cast(step, tf.float32) * 0.5, name="rate")
        tf.identity(w * 1.0, name="old")
        with tf.control_dependencies([train_op]):
            tf.identity(w * 1.0, name="new")
        return kte.tf1.TPUEstimatorSpec(
            mode, loss=loss, train_op=train_op, training_hooks=[Seeing()]
        )

    made = estimator(model_fn, tmp_path, iterations=1)
    made.train(fed([X] * 3), steps=3)
    assert seen == [[0, 0, 0.5], [0.5, 0.5, 0.75], [1, 0.75, 0.875]]
