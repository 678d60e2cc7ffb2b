"""The functions of a graph: bodies of `tf.cond`, `tf.while_loop` and calls.

A graph and its functions are alike, but for how inputs refer to outputs.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

# Protocol buffers, which have no types.
Node: TypeAlias = Any
Function: TypeAlias = Any
Library: TypeAlias = Mapping[str, Function]

BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
LOOPS = frozenset({"While", "StatelessWhile"})
_CALLED = {
    **dict.fromkeys(("If", "StatelessIf"), ("then_branch", "else_branch")),
    **dict.fromkeys(LOOPS, ("cond", "body")),
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), ("f",)),
}
_RESOURCE = 20  # The number of `tf.resource`.


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """Nodes of a graph or of a function.

    Attributes:
        nodes: Each after those whose outputs it takes.
        arguments: The names under which values are given.
        variables: The names under which variables are given.
    """

    nodes: Sequence[Node]
    arguments: Sequence[str]
    variables: Sequence[str]

    @classmethod
    def of(cls, function: Function) -> "Body":
        """The body of a function."""
        arguments = function.signature.input_arg
        return cls(
            function.node_def,
            [each.name for each in arguments if each.type != _RESOURCE],
            [each.name for each in arguments if each.type == _RESOURCE],
        )


def library_of(graph_def: Any) -> dict[str, Function]:
    """The functions of a graph by name."""
    return {
        function.signature.name: function for function in graph_def.library.function
    }


def called(node: Node) -> list[Any]:
    """What a node calls, as the protocol buffers that hold the names.

    Those of a loop are its condition and its body.
    """
    if node.op in ("Case", "StatelessCase"):
        return list(node.attr["branches"].list.func)
    return [node.attr[name].func for name in _CALLED.get(node.op, ())]


def first_argument(node: Node) -> int:
    """Which input of a calling node is the first argument of what it calls."""
    return 1 if node.op in BRANCHES else 0


def data_inputs(node: Node) -> list[str]:
    """The references of a node to outputs of others."""
    return [name for name in node.input if not name.startswith("^")]


def source(reference: str) -> str:
    """The name of the node or the argument that an input refers to."""
    return reference.removeprefix("^").partition(":")[0]


def nodes_within(node: Node, library: Library) -> Iterator[Node]:
    """A node, and all nodes of what it calls."""
    yield node
    for each in called(node):
        for inner in library[each.name].node_def:
            yield from nodes_within(inner, library)
