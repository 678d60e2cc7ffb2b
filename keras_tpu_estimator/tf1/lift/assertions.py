"""Removal of assertions, and of the operations that only assertions need.

XLA ignores assertions, but it cannot compile each operation that computes their
conditions or messages, such as the set operation of the weights of `tf.metrics`.
"""

from collections.abc import Collection, Sequence

from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.definitions import (
    Library,
    Node,
    called,
    nodes_within,
    source,
)
from keras_tpu_estimator.tf1.graph.inner_ops import RUNS
from keras_tpu_estimator.tf1.lift.effects import READS

_ASSERTION = "Assert"


def without_assertions(
    nodes: Sequence[Node],
    library: Library,
    used: Collection[str],
    run: Collection[str],
) -> list[Node]:
    """Returns nodes without assertions and the operations that only they need.

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
        for reference in node.input:
            stack.append((source(reference), is_kept and not reference.startswith("^")))
    return [_waiting(n) if n.name in removed - remaining else n for n in nodes]


def _contains_assertion(node: Node, library: Library) -> bool:
    return any(inner.op == _ASSERTION for inner in nodes_within(node, library))


def _has_effect(node: Node, library: Library) -> bool:
    """Returns whether a step differs without a node whose values it does not use."""
    if RUNS in node.attr:
        return True
    return any(map(_is_effect, nodes_within(node, library)))


def _is_effect(node: Node) -> bool:
    if node.op in READS or node.op == _ASSERTION or called(node):
        return False
    return internals.is_stateful(node.op)


def _waiting(node: Node) -> Node:
    """Returns a node with the name of another one, which waits for the same nodes."""
    names = dict.fromkeys(source(reference) for reference in node.input)
    return type(node)(name=node.name, op="NoOp", input=[f"^{name}" for name in names])
