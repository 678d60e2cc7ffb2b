"""The definition of a graph: its nodes, functions and dependencies.

A graph and its functions differ only in how inputs refer to outputs. Functions are
bodies of `tf.cond`, `tf.while_loop` and calls. The type of a `function.Defun` call is
the name of a function. Such calls are rewritten to `PartitionedCall`, the only kind of
call that other modules know.
"""

import dataclasses
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

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
    """The nodes of a graph or of a function, each after the nodes of its inputs.

    Attributes:
        arguments: The names of the arguments that are values.
        variables: The names of the arguments that are variables.
    """

    nodes: Sequence[Node]
    arguments: Sequence[str]
    variables: Sequence[str]

    @classmethod
    def from_function(cls, function: Function) -> "Body":
        """Returns the body of a function."""
        arguments = function.signature.input_arg
        return cls(
            function.node_def,
            [argument.name for argument in arguments if argument.type != _RESOURCE],
            [argument.name for argument in arguments if argument.type == _RESOURCE],
        )


def library_of(graph_def: Any) -> dict[str, Function]:
    """Returns the functions of a graph by name."""
    return {
        function.signature.name: function for function in graph_def.library.function
    }


def called(node: Node) -> list[Any]:
    """Returns the functions that a node calls: for a loop, its condition and body."""
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
    for callee in called(node):
        for inner in library[callee.name].node_def:
            yield from nodes_within(inner, library)


def type_number(dtype: str) -> int:
    """Returns the number of a dtype in protocol buffers."""
    import tensorflow as tf

    number: int = tf.as_dtype(dtype).as_datatype_enum
    return number


def set_inputs(node: Node, data: Sequence[str]) -> None:
    """Replaces the data inputs of a node, and keeps its control inputs."""
    controls = [name for name in node.input if name.startswith("^")]
    del node.input[:]
    node.input.extend([*data, *controls])


def add_copy(nodes: Any, node: Node, inputs: Sequence[str]) -> Node:
    """Adds a copy of a node with these inputs and without a device."""
    copy = nodes.add()
    copy.CopyFrom(node)
    copy.device = ""
    copy.attr.pop("_class", None)
    del copy.input[:]
    copy.input.extend(inputs)
    return copy


@dataclasses.dataclass(frozen=True)
class Writer:
    """A writer of nodes in a graph, or in a function, where references name outputs."""

    nodes: Any
    is_function: bool

    def constant(self, name: str, value: np.ndarray | np.generic) -> str:
        """Adds a constant, and returns a reference to it."""
        import tensorflow as tf

        node = self.nodes.add(name=name, op="Const")
        tensor = tf.make_tensor_proto(value)
        node.attr["value"].tensor.CopyFrom(tensor)
        node.attr["dtype"].type = tensor.dtype
        return self._reference(name, "output")

    def node(
        self,
        name: str,
        op: str,
        inputs: Sequence[str],
        types: Mapping[str, int],
        output: str = "output",
        number: int = 0,
    ) -> str:
        """Adds a node, and returns a reference to one of its outputs.

        `types` are the attributes that are types. `output` is the name of the output in
        the op definition, and `number` is its position.
        """
        node = self.nodes.add(name=name, op=op)
        node.input.extend(inputs)
        for key, dtype in types.items():
            node.attr[key].type = dtype
        return self._reference(name, output, number)

    def _reference(self, name: str, output: str, number: int = 0) -> str:
        if self.is_function:
            return f"{name}:{output}:0"
        return f"{name}:{number}" if number else name


def name_functions(graph_def: Any) -> None:
    """Rewrites the calls in a graph and its functions to name their functions."""
    library = library_of(graph_def)
    for node in graph_def.node:
        _name_function(node, library)
    for function in library.values():
        renamed: dict[str, str] = {}
        for node in function.node_def:
            renamed |= _name_function(node, library)
        if renamed:
            _rename(function, renamed)


def _name_function(node: Node, library: Library) -> Mapping[str, str]:
    """Returns new names of outputs, as inputs in a function refer to them."""
    function = library.get(node.op)
    if function is None:
        return {}
    signature = function.signature
    shapes = node.attr["_output_shapes"].list.shape[:]
    for name in list(node.attr):
        del node.attr[name]
    node.op = "StatefulPartitionedCall" if signature.is_stateful else "PartitionedCall"
    node.attr["f"].func.name = signature.name
    node.attr["Tin"].list.type.extend(a.type for a in signature.input_arg)
    node.attr["Tout"].list.type.extend(a.type for a in signature.output_arg)
    if shapes:
        node.attr["_output_shapes"].list.shape.extend(shapes)
    return {
        f"{node.name}:{output.name}:0": f"{node.name}:output:{number}"
        for number, output in enumerate(signature.output_arg)
    }


def _rename(function: Function, names: Mapping[str, str]) -> None:
    """Renames the references within a function."""
    for node in function.node_def:
        inputs = [names.get(reference, reference) for reference in node.input]
        del node.input[:]
        node.input.extend(inputs)
    # An assignment can change the order of a protocol buffer's map.
    for output, reference in [*function.ret.items()]:
        function.ret[output] = names.get(reference, reference)


@dataclasses.dataclass(frozen=True, eq=False)
class Definition:
    """A graph as read-only protocol buffers, with the functions that its nodes call.

    The `version` of the graph grows when operations are added.
    """

    graph_def: Any = dataclasses.field(repr=False)
    version: int
    nodes: Mapping[str, Node] = dataclasses.field(repr=False)
    library: Library = dataclasses.field(repr=False)


_definitions: weakref.WeakKeyDictionary[Any, Definition] = weakref.WeakKeyDictionary()


def definition_of(graph: Any) -> Definition:
    """Returns the definition of a graph, cached by its version."""
    definition = _definitions.get(graph)
    if definition is None or definition.version != graph.version:
        graph_def = graph.as_graph_def()
        name_functions(graph_def)
        definition = Definition(
            graph_def,
            graph.version,
            {node.name: node for node in graph_def.node},
            library_of(graph_def),
        )
        _definitions[graph] = definition
    return definition


def reachable(graph: Any, fetches: Sequence[Any]) -> list[Any]:
    """Returns the operations that some depend on, in the order of creation.

    Operations with control inputs that were added later come after these inputs.
    """
    stack = [getattr(fetch, "op", fetch) for fetch in fetches]
    needed = set()
    while stack:
        op = stack.pop()
        if op.name not in needed:
            needed.add(op.name)
            stack += [t.op for t in op.inputs] + list(op.control_inputs)
    ordered: dict[str, Any] = {}
    for op in graph.get_operations():
        if op.name in needed:
            for operation in (*op.control_inputs, op):
                ordered.setdefault(operation.name, operation)
    return list(ordered.values())
