"""A graph in which operations can wait for operations in a branch of `tf.cond`.

In TensorFlow 1.15 a branch is part of the graph around it. Operations outside can wait
for one inside, such as an update of batch normalization, and run only if it runs. Here
a branch is a function. Therefore operations outside wait for a mark that names the
inner operation, and `branches` replaces the mark by a condition.
"""

import functools
from collections.abc import Sequence
from typing import Any

from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.definitions import BRANCHES, LOOPS, called
from keras_tpu_estimator.tf1.graph.source_lines import line_of


def is_inside(graph: Any, element: Any) -> bool:
    """Returns whether an element is in a branch or a loop of a graph."""
    inner = getattr(getattr(element, "op", element), "graph", None)
    while inner is not None:
        inner = getattr(inner, "outer_graph", None)
        if inner is graph:
            return True
    return False


def check_outside(name: str, graph: Any, element: Any) -> None:
    """Raises a ValueError if an operation or tensor is in a branch or a loop."""
    if is_inside(graph, element):
        raise ValueError(
            f"{name} must be outside of branches and loops; TensorFlow 1.15 "
            f"also fetches nothing inside. Received: {element!r}. Return a "
            "tensor from the branch or loop, or put an operation of a branch "
            "into tf.group."
        )


def check_returned(graph: Any, tensor: Any) -> None:
    """Raises a ValueError if a tensor is in a branch or a loop of a graph."""
    if is_inside(graph, tensor):
        op = getattr(tensor, "op", tensor)
        raise ValueError(
            "A tensor of a branch or a loop must be returned from it to be "
            "used outside, also if it is in a collection, as losses and "
            f"summaries are. Received: {op.name} ({op.type}), made at "
            f"{line_of(op)}. Return it from the function that makes it, and "
            "use the result of tf.cond or tf.while_loop, such as in "
            "tf.losses.add_loss."
        )


RUNS = "_kte_runs"


@functools.cache
def graph_class() -> Any:
    """Returns the class of the graphs in which a `model_fn` is called."""
    import tensorflow as tf

    class ModelGraph(tf.Graph):
        """A graph whose operations can wait for operations in branches."""

        def control_dependencies(self, control_inputs: Any) -> Any:
            """Makes operations in a `with` block wait for others."""
            if control_inputs is not None:
                control_inputs = [_outside(self, c) for c in control_inputs]
            return super().control_dependencies(control_inputs)

    return ModelGraph


def without_inner(elements: Sequence[Any]) -> list[Any]:
    """Returns the elements that are in no branch of the default graph."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    if not isinstance(graph, graph_class()):
        return [*elements]
    return [e for e in elements if not is_inside(graph, e)]


def _outside(graph: Any, waited: Any) -> Any:
    """Returns an operation itself, or the mark for one in a branch."""
    op = getattr(waited, "op", waited)
    inner, path = getattr(op, "graph", graph), []
    while inner is not graph:
        call = _call_of(inner)
        if call is None:
            return waited
        if call.type in LOOPS:
            raise ValueError(_in_loop(op, call))
        names = [callee.name for callee in called(call.node_def)]
        path.append(f"{call.name}:{names.index(inner.name)}")
        inner = call.graph
    return waited if inner is op.graph else _mark(graph, op, path[::-1])


def _call_of(inner: Any) -> Any:
    """Returns the condition or loop that calls a function's graph."""
    outer = getattr(inner, "outer_graph", None)
    if outer is None:
        return None
    for op in reversed(outer.get_operations()):
        if op.type in BRANCHES | LOOPS:
            if inner.name in {callee.name for callee in called(op.node_def)}:
                return op
    return None


def _mark(graph: Any, op: Any, path: list[str]) -> Any:
    """Returns the mark for an operation in a branch."""
    import tensorflow as tf

    call = graph.get_operation_by_name(path[0].rpartition(":")[0])
    runs = [*path, op.name]
    name = f"{call.name}/kte_runs/{'/'.join(runs).replace(':', '_')}"
    try:
        return graph.get_operation_by_name(name)
    except KeyError:
        pass
    with (
        graph.as_default(),
        graph.name_scope(None),
        graph.control_dependencies(None),
        graph.control_dependencies([call]),
    ):
        mark = tf.no_op(name=name)
    internals.set_strings(mark, RUNS, runs)
    return mark


def _in_loop(op: Any, loop: Any) -> str:
    return (
        "Operations outside of a loop must not wait for one in its body; "
        f"TensorFlow 1.15 also refuses it. Received: {op.name} ({op.type}), "
        f"made at {line_of(op)}, in the loop {loop.name}, made at "
        f"{line_of(loop)}. Have the body's results wait for it: `with "
        "tf.control_dependencies([op])` around a tf.identity of one of them."
    )
