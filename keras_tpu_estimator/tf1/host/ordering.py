"""The order in which operations of a host's graph use its variables.

A session runs operations without a dependency between them in any order, which may
change from run to run.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.definitions import reachable
from keras_tpu_estimator.tf1.lift.effects import READS

# Orders the operations that fetches of a graph need, given the handles of its
# variables and the inputs that receive a batch.
Order: TypeAlias = Callable[[Any, Sequence[Any], Iterable[Any], Sequence[Any]], None]

_ASSIGNMENT = "AssignVariableOp"
_FUNCTIONAL = frozenset({"Case", "If", "While"})


def keep_order(
    graph: Any, fetches: Sequence[Any], handles: Iterable[Any], inputs: Sequence[Any]
) -> None:
    """Makes operations on the same variable wait for those created before them."""
    del inputs
    needed = {op.name for op in reachable(graph, fetches)}
    last: dict[str, Any] = dict.fromkeys(handle.name for handle in handles)
    for op in graph.get_operations():
        used = [tensor.name for tensor in op.inputs if tensor.name in last]
        if not used or op.name not in needed:
            continue
        before = {last[name].name: last[name] for name in used if last[name]}
        _wait_for(op, before)
        last |= dict.fromkeys(used, _ended(graph, op))


def assign_constants_first(
    graph: Any, fetches: Sequence[Any], handles: Iterable[Any], inputs: Sequence[Any]
) -> None:
    """Makes operations on a variable wait for its assignments that wait for nothing.

    Such an assignment is a variable's initializer, also in a branch of `tf.cond`.
    TensorFlow runs it as soon as a run begins, before the batch is read. In a host's
    graph the batch already exists.
    """
    waiting = {tensor.op.name for tensor in inputs}
    handle_names = {handle.name for handle in handles}
    first: dict[str, dict[str, Any]] = {}
    later: list[tuple[Any, str]] = []
    for op in reachable(graph, fetches):
        before = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
        used = [tensor.name for tensor in op.inputs if tensor.name in handle_names]
        waits = not waiting.isdisjoint(operation.name for operation in before)
        if op.type == _ASSIGNMENT and used and not waits:
            first.setdefault(used[0], {})[op.name] = op
        elif waits or op.type not in READS:
            later += [(op, name) for name in used]
        if waits or used:
            waiting.add(op.name)
    for op, name in later:
        _wait_for(op, first.get(name, {}))


def _wait_for(op: Any, earlier: dict[str, Any]) -> None:
    """Makes an operation also wait for others, by name."""
    controls = {control.name: control for control in op.control_inputs}
    if earlier.keys() - controls.keys():
        internals.set_control_inputs(op, list((controls | earlier).values()))


def _ended(graph: Any, op: Any) -> Any:
    """Returns an operation that runs when an operation has finished."""
    import tensorflow as tf

    if op.type not in _FUNCTIONAL:
        return op
    # An operation that waits only for `If` may run before its branch does.
    with graph.as_default():
        results = [tf.identity(tensor) for tensor in op.outputs]
        with tf.control_dependencies(results):
            return tf.no_op()
