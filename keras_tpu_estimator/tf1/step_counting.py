"""A check that a graph increments its global step by one in each run."""

from collections.abc import Mapping

from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.tf1.effects import Effects, written
from keras_tpu_estimator.tf1.functions import Body, Library, Node, data_inputs, source

_SAME_VALUE = frozenset({"Identity", "Cast", "StopGradient"})


def counts_once(body: Body, library: Library, effects: Effects) -> bool:
    """Returns whether every run adds exactly one to the global step.

    It recognizes `assign_add(step, 1)` and `assign(step, step + 1)` outside of
    conditions, loops and functions if nothing else assigns the step. Other graphs may
    count differently, with gradient accumulation, loss scaling or two optimizers.
    """
    nodes = {node.name: node for node in body.nodes}
    writers = [
        nodes[name]
        for name, used in effects.used.items()
        if _writes_step(nodes[name], used, library)
    ]
    if len(writers) != 1:
        return False
    (writer,) = writers
    if writer.op == "AssignAddVariableOp":
        return _is_one(writer.input[1], nodes)
    return writer.op == "AssignVariableOp" and _is_step_plus_one(
        writer.input[1], nodes, effects
    )


def _writes_step(node: Node, used: list[tuple[int, str]], library: Library) -> bool:
    positions = [p for p, variable in used if variable == GLOBAL_STEP]
    return bool(written(node, positions, library))


def _is_step_plus_one(
    reference: str, nodes: Mapping[str, Node], effects: Effects
) -> bool:
    """Returns whether a value is the global step before the run, plus one.

    Only one node assigns the step, and it depends on this value, so all reads in the
    value come before the assignment.
    """
    node = _origin(reference, nodes)
    if node is None or node.op not in ("Add", "AddV2"):
        return False
    first, second = data_inputs(node)
    return any(
        _is_step(one, nodes, effects) and _is_one(other, nodes)
        for one, other in ((first, second), (second, first))
    )


def _is_step(reference: str, nodes: Mapping[str, Node], effects: Effects) -> bool:
    node = _origin(reference, nodes)
    return (
        node is not None
        and node.op == "ReadVariableOp"
        and any(v == GLOBAL_STEP for _, v in effects.used[node.name])
    )


def _is_one(reference: str, nodes: Mapping[str, Node]) -> bool:
    import tensorflow as tf

    node = _origin(reference, nodes)
    if node is None or node.op != "Const":
        return False
    return bool((tf.make_ndarray(node.attr["value"].tensor) == 1).all())


def _origin(reference: str, nodes: Mapping[str, Node]) -> Node | None:
    """Returns the node from which a value comes unchanged, if there is one."""
    node = nodes.get(source(reference))
    while node is not None and node.op in _SAME_VALUE:
        node = nodes.get(source(data_inputs(node)[0]))
    return node
