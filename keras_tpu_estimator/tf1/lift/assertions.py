"""Removal of assertions and printing, and of the operations that only these need.

XLA ignores assertions, but it cannot compile each operation that computes their
conditions or messages, such as the set operation of the weights of `tf.metrics`. It
cannot print, so that `tf.Print` only returns its first input.
"""

from collections.abc import Collection, Sequence

from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.definitions import (
    Library,
    Node,
    called,
    data_inputs,
    nodes_within,
    source,
)
from keras_tpu_estimator.tf1.graph.inner_ops import RUNS
from keras_tpu_estimator.tf1.lift.effects import READS

_ASSERTION, _PRINT = "Assert", "Print"
# Stateful operations without an effect.
_WITHOUT_EFFECT = frozenset({*READS, _ASSERTION, _PRINT, "Timestamp"})


def without_assertions(
    nodes: Sequence[Node],
    library: Library,
    used: Collection[str],
    run: Collection[str],
) -> list[Node]:
    """Returns nodes without assertions, printing and operations that only these need.

    A removed operation becomes a `NoOp` that waits for the same operations. An
    operation that changes a variable or draws random numbers remains. `used` contains
    the names of nodes whose values are used, and `run` those of nodes that only run.
    """
    if not any(_contains_assertion(node, library) for node in nodes):
        return [*nodes]
    by_name = {node.name: node for node in nodes}
    remaining, removed = set[str](), set[str]()
    stack = [(name, True) for name in used] + [(name, False) for name in run]
    while stack:
        name, is_used = stack.pop()
        if name not in by_name or name in remaining:
            continue
        node = by_name[name]
        is_kept = node.op != _ASSERTION and (is_used or _has_effect(node, library))
        if not is_kept and name in removed:
            continue
        (remaining if is_kept else removed).add(name)
        values = _values(node) if is_kept else []
        stack += [(source(name), name in values) for name in node.input]
    return [
        _waiting(node) if node.name in removed - remaining else _without_printing(node)
        for node in nodes
    ]


def _contains_assertion(node: Node, library: Library) -> bool:
    kinds = (_ASSERTION, _PRINT)
    return any(inner.op in kinds for inner in nodes_within(node, library))


def _values(node: Node) -> list[str]:
    """Returns the inputs that decide about the outputs of a node."""
    inputs = data_inputs(node)
    return inputs[:1] if node.op == _PRINT else inputs


def _has_effect(node: Node, library: Library) -> bool:
    """Returns whether a step differs without a node whose values it does not use."""
    if RUNS in node.attr:
        return True
    return any(map(_is_effect, nodes_within(node, library)))


def _is_effect(node: Node) -> bool:
    if node.op in _WITHOUT_EFFECT or called(node):
        return False
    return internals.is_stateful(node.op)


def _waiting(node: Node) -> Node:
    """Returns a node with the name of another one, which waits for the same nodes."""
    names = dict.fromkeys(source(reference) for reference in node.input)
    return type(node)(name=node.name, op="NoOp", input=[f"^{name}" for name in names])


def _without_printing(node: Node) -> Node:
    """Returns a node that returns the first input if the node prints the others."""
    if node.op != _PRINT:
        return node
    warn_once(
        "`tf.Print` prints nothing in a step, because devices cannot print. Log the "
        "tensor by a tf.train.LoggingTensorHook."
    )
    first, *printed = data_inputs(node)
    silent = type(node)(name=node.name, op="Identity")
    silent.attr["T"].CopyFrom(node.attr["T"])
    waits = [name for name in node.input if name.startswith("^")]
    waits += [f"^{source(name)}" for name in printed]
    silent.input.extend([first, *dict.fromkeys(waits)])
    return silent
