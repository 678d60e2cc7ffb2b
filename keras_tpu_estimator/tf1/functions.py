"""The functions of a graph: bodies of `tf.cond`, `tf.while_loop` and calls.

A graph and its functions differ only in how inputs refer to outputs.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

# Protocol buffers, which have no static types.
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
    """The nodes of a graph or of a function.

    Attributes:
        nodes: The nodes, each after the nodes of its inputs.
        arguments: The names of the arguments that are values.
        variables: The names of the arguments that are variables.
    """

    nodes: Sequence[Node]
    arguments: Sequence[str]
    variables: Sequence[str]

    @classmethod
    def of(cls, function: Function) -> "Body":
        """Returns the body of a function."""
        arguments = function.signature.input_arg
        return cls(
            function.node_def,
            [each.name for each in arguments if each.type != _RESOURCE],
            [each.name for each in arguments if each.type == _RESOURCE],
        )


def library_of(graph_def: Any) -> dict[str, Function]:
    """Returns the functions of a graph by name."""
    return {
        function.signature.name: function for function in graph_def.library.function
    }


def called(node: Node) -> list[Any]:
    """Returns the functions that a node calls, as protocol buffers with their names.

    The functions of a loop are its condition and its body.
    """
    if node.op in ("Case", "StatelessCase"):
        return list(node.attr["branches"].list.func)
    return [node.attr[name].func for name in _CALLED.get(node.op, ())]


def first_argument(node: Node) -> int:
    """Returns the position of the input that is the callee's first argument."""
    return 1 if node.op in BRANCHES else 0


def data_inputs(node: Node) -> list[str]:
    """Returns the inputs of a node that are outputs of other nodes."""
    return [name for name in node.input if not name.startswith("^")]


def source(reference: str) -> str:
    """Returns the name of the node or argument that an input refers to."""
    return reference.removeprefix("^").partition(":")[0]


def nodes_within(node: Node, library: Library) -> Iterator[Node]:
    """Yields a node, and all nodes of the functions that it calls."""
    yield node
    for each in called(node):
        for inner in library[each.name].node_def:
            yield from nodes_within(inner, library)
