"""The definition of a graph, and the operations that others depend on."""

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from keras_tpu_estimator.tf1.defuns import name_functions
from keras_tpu_estimator.tf1.functions import Library, Node, library_of


@dataclasses.dataclass(frozen=True, eq=False)
class Definition:
    """A graph as read-only protocol buffers.

    Attributes:
        whole: The `GraphDef`.
        version: The version of the graph, which grows when operations are added.
        nodes: The nodes by name.
        library: The functions that the nodes call.
    """

    whole: Any = dataclasses.field(repr=False)
    version: int
    nodes: Mapping[str, Node] = dataclasses.field(repr=False)
    library: Library = dataclasses.field(repr=False)


_known: weakref.WeakKeyDictionary[Any, Definition] = weakref.WeakKeyDictionary()


def definition_of(graph: Any) -> Definition:
    """Returns the definition of a graph, cached by its version."""
    known = _known.get(graph)
    if known is None or known.version != graph.version:
        whole = graph.as_graph_def()
        name_functions(whole)
        known = Definition(
            whole,
            graph.version,
            {node.name: node for node in whole.node},
            library_of(whole),
        )
        _known[graph] = known
    return known


def reachable(graph: Any, fetches: Sequence[Any]) -> list[Any]:
    """Returns the operations that some depend on, in the order of creation.

    Operations with control inputs that were added later come after these inputs.
    """
    stack = [getattr(each, "op", each) for each in fetches]
    needed = set()
    while stack:
        op = stack.pop()
        if op.name not in needed:
            needed.add(op.name)
            stack += [t.op for t in op.inputs] + list(op.control_inputs)
    ordered: dict[str, Any] = {}
    for op in graph.get_operations():
        if op.name in needed:
            for each in (*op.control_inputs, op):
                ordered.setdefault(each.name, each)
    return list(ordered.values())
