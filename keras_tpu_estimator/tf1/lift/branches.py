"""Branches and loops that run only the operations that TensorFlow 1.15 runs.

In TensorFlow 1.15, an operation in a branch of `tf.cond` or in the body of a loop runs
only if a result, or an operation that waits for it, depends on it. An operation that
waits for one in a branch runs only if that branch is taken.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tpu_estimator.tf1.graph.definitions import (
    BRANCHES,
    LOOPS,
    Body,
    Function,
    Library,
    Node,
    Writer,
    called,
    data_inputs,
    set_inputs,
    source,
    type_number,
)
from keras_tpu_estimator.tf1.graph.inner_ops import RUNS
from keras_tpu_estimator.tf1.graph.internals import static_value
from keras_tpu_estimator.tf1.graph.source_lines import line_of
from keras_tpu_estimator.tf1.lift.assertions import without_assertions
from keras_tpu_estimator.tf1.lift.effects import effects_of, written


def running_if(
    predicate: str, op: Any, node: Node, library: dict[str, Function]
) -> Node:
    """Returns a node that runs another one if a condition holds.

    The node of the operation may have additional boolean outputs. New functions are
    added to the library.
    """
    import tensorflow as tf

    outputs = [(tensor.dtype, tensor.shape) for tensor in op.outputs]
    if node.op in BRANCHES:
        more = len(node.attr["Tout"].list.type) - len(outputs)
        outputs += [(tf.bool, tf.TensorShape([]))] * more
    if any(dtype == tf.resource for dtype, _ in outputs):
        raise ValueError(
            "A loop that assigns variables must not wait for an operation in "
            f"a branch. Received: {op.name}, made at {line_of(op)}. Assign "
            "them after the loop."
        )
    then_function = _function(f"{op.name}_kte_then", op, library)
    else_function = _function(f"{op.name}_kte_else", op, library)
    references = _outputs(op, len(outputs))
    inner = then_function.node_def.add()
    inner.CopyFrom(node)
    del inner.input[:]
    inner.input.extend(argument.name for argument in then_function.signature.input_arg)
    for number, (dtype, shape) in enumerate(outputs):
        name = f"kte_output_{number}"
        for function in (then_function, else_function):
            function.signature.output_arg.add(name=name, type=dtype.as_datatype_enum)
        then_function.ret[name] = f"{inner.name}:{references[number]}"
        nothing = else_function.node_def.add(name=f"kte_none_{number}", op="FakeParam")
        nothing.attr["dtype"].type = dtype.as_datatype_enum
        nothing.attr["shape"].shape.CopyFrom(shape.as_proto())
        else_function.ret[name] = f"{nothing.name}:output:0"
    return _if(predicate, node, then_function, else_function)


def _if(
    predicate: str, node: Node, then_function: Function, else_function: Function
) -> Node:
    """Returns the conditional that replaces a node, with its name."""
    new = type(node)(name=node.name, op="If", input=node.input)
    set_inputs(new, [predicate, *data_inputs(node)])
    new.attr["Tcond"].type = type_number("bool")
    signature = then_function.signature
    new.attr["Tin"].list.type.extend(a.type for a in signature.input_arg)
    new.attr["Tout"].list.type.extend(a.type for a in signature.output_arg)
    new.attr["then_branch"].func.name = signature.name
    new.attr["else_branch"].func.name = else_function.signature.name
    return new


def _function(name: str, op: Any, library: dict[str, Function]) -> Function:
    """Adds a function with the arguments of an operation."""
    from tensorflow.core.framework import function_pb2

    function = function_pb2.FunctionDef()
    function.signature.name = name.replace("/", "_")
    for number, tensor in enumerate(op.inputs):
        function.signature.input_arg.add(
            name=f"kte_input_{number}", type=tensor.dtype.as_datatype_enum
        )
    library[function.signature.name] = function
    return function


def _outputs(op: Any, count: int) -> list[str]:
    """Returns the references by which a function names the outputs of an operation."""
    args = op.op_def.output_arg
    if len(args) == 1 and args[0].type_list_attr:
        return [f"{args[0].name}:{number}" for number in range(count)]
    return [f"{output.name}:0" for output in args]


# The conditions from the outermost to the innermost, each with the branch taken.
Path = tuple[tuple[str, int], ...]


class InnerOp(NamedTuple):
    """An operation in a branch for which operations outside the branch wait."""

    path: Path
    name: str


def as_run(
    ops: Mapping[str, Any],
    body: Body,
    library: Library,
    used: Collection[str],
    run: Collection[str],
) -> tuple[Body, Library]:
    """Returns a step with only the operations that TensorFlow 1.15 would run.

    `used` contains the names of the operations whose values the step returns, and `run`
    those of operations that it runs without returning values.
    """
    marks = {n.name: _inner_op(n) for n in body.nodes if RUNS in n.attr}
    folded = _Folded(ops, {**library}, [*marks.values()])
    nodes = folded.nodes(body.nodes, {*used, *run})
    body = dataclasses.replace(body, nodes=nodes)
    marks = {node.name: marks[node.name] for node in nodes if node.name in marks}
    library = folded.functions
    narrowed = _Narrowed(library, {**library})
    calls = {mark.path[0][0] for mark in marks.values()}
    checked = without_assertions(body.nodes, library, {*used, *calls}, run)
    nodes = narrowed.nodes(checked, [*marks.values()])
    body = dataclasses.replace(body, nodes=nodes)
    if marks:
        body = _with_conditions(ops, body, narrowed, marks)
    return body, narrowed.functions


def _inner_op(mark: Node) -> InnerOp:
    *path, name = (part.decode() for part in mark.attr[RUNS].list.s)
    parts = (part.rpartition(":") for part in path)
    return InnerOp(tuple((call, int(n)) for call, _, n in parts), name)


@dataclasses.dataclass
class _Folded:
    """Conditions with a constant predicate, which need only one branch's inputs.

    TensorFlow's graph optimizer also leaves out what only the other branch needs, such
    as the update of moving averages by a batch normalization for training. New
    functions are added to `functions`. `inner_ops` are operations in branches for which
    others wait.
    """

    ops: Mapping[str, Any]
    functions: dict[str, Function]
    inner_ops: Sequence[InnerOp]

    def nodes(self, nodes: Sequence[Node], roots: Collection[str]) -> list[Node]:
        """Returns the nodes that some depend on if such conditions are folded."""
        folded = [self._folded(node) for node in nodes]
        if all(a is b for a, b in zip(nodes, folded, strict=True)):
            return folded
        needed = _behind({node.name: node for node in folded}, roots)
        return [node for node in folded if node.name in needed]

    def _folded(self, node: Node) -> Node:
        """Returns a condition that takes only the inputs of the branch taken."""
        if node.op not in ("If", "StatelessIf"):
            return node
        value = _constant(self.ops[node.name].inputs[0])
        if value is None or np.ndim(value):
            return node
        branch = 0 if value else 1
        if any(
            inner_op.path[0] == (node.name, 1 - branch) for inner_op in self.inner_ops
        ):
            return node
        original = self.functions[called(node)[branch].name]
        arguments = original.signature.input_arg
        inner = [
            *original.ret.values(),
            *(i for n in original.node_def for i in n.input),
        ]
        used = {*map(source, inner)}
        positions = [k for k, argument in enumerate(arguments) if argument.name in used]
        predicate, *inputs = data_inputs(node)
        function = type(original)()
        function.CopyFrom(original)
        function.signature.name = f"{original.signature.name}_kte_taken"
        del function.signature.input_arg[:]
        function.signature.input_arg.extend(arguments[k] for k in positions)
        # Their keys are positions of arguments.
        function.arg_attr.clear()
        function.resource_arg_unique_id.clear()
        self.functions[function.signature.name] = function
        copy = type(node)()
        copy.CopyFrom(node)
        set_inputs(copy, [predicate, *(inputs[k] for k in positions)])
        del copy.attr["Tin"].list.type[:]
        copy.attr["Tin"].list.type.extend(arguments[k].type for k in positions)
        copy.attr.pop("_read_only_resource_inputs", None)
        for callee in called(copy):
            callee.name = function.signature.name
        return copy


_LOGIC: Mapping[str, Callable[..., Any]] = {
    "Identity": np.asarray,
    "LogicalAnd": np.logical_and,
    "LogicalNot": np.logical_not,
    "LogicalOr": np.logical_or,
}


def _constant(tensor: Any) -> Any:
    """Returns the value of a condition that is computed from constants, or `None`."""
    if tensor.op.type not in _LOGIC:
        return static_value(tensor)
    values = [_constant(operand) for operand in tensor.op.inputs]
    are_constant = all(value is not None for value in values)
    return _LOGIC[tensor.op.type](*values) if are_constant else None


def _behind(nodes: Mapping[str, Node], roots: Collection[str]) -> set[str]:
    """Returns the names of nodes on which the roots depend, with the roots."""
    stack, needed = [*roots], set[str]()
    while stack:
        name = stack.pop()
        if name in nodes and name not in needed:
            needed.add(name)
            stack += map(source, nodes[name].input)
    return needed


@dataclasses.dataclass
class _Narrowed:
    """Functions that contain only the operations they need.

    Attributes:
        library: The functions of the graph.
        functions: The functions of the graph, and the narrowed ones.
        numbers: Numbers for new names.
    """

    library: Library
    functions: dict[str, Function]
    numbers: Iterator[int] = dataclasses.field(
        default_factory=lambda: itertools.count(1)
    )

    def nodes(self, nodes: Sequence[Node], inner_ops: Sequence[InnerOp]) -> list[Node]:
        """Returns nodes that call narrowed functions."""
        return [
            self._call(node, _inside(node.name, inner_ops)) if called(node) else node
            for node in nodes
        ]

    def _call(self, node: Node, inner_ops: Sequence[InnerOp]) -> Node:
        """Returns a call that also returns whether each path was taken."""
        paths = _paths(inner_ops)
        names = [
            self._function(node, self.library[callee.name], number, inner_ops)
            for number, callee in enumerate(called(node))
        ]
        if names == [callee.name for callee in called(node)]:
            return node
        copy = type(node)()
        copy.CopyFrom(node)
        for callee, name in zip(called(copy), names, strict=True):
            callee.name = name
        has_shapes = bool(paths) and len(node.attr["output_shapes"].list.shape) > 0
        for _ in paths:
            copy.attr["Tout"].list.type.append(type_number("bool"))
            if has_shapes:
                copy.attr["output_shapes"].list.shape.add()
        return copy

    def _function(
        self, call: Node, function: Function, branch: int, inner_ops: Sequence[InnerOp]
    ) -> str:
        """Adds a function that contains only what is needed, and returns its name."""
        in_branch = [
            inner_op for inner_op in inner_ops if inner_op.path[0][1] == branch
        ]
        inner = [InnerOp(w.path[1:], w.name) for w in in_branch if len(w.path) > 1]
        run = [w.name for w in in_branch if len(w.path) == 1]
        used = [inner_op.path[0][0] for inner_op in inner]
        needed = list(function.node_def)
        if call.op in BRANCHES | LOOPS:
            needed = _needed(function, [*run, *used])
        used += map(source, function.ret.values())
        # TensorFlow runs each operation of `kept`.
        run += [node.name for node in needed]
        checked = without_assertions(needed, self.library, used, run)
        nodes = self.nodes(checked, inner)
        paths = _paths(inner_ops)
        name: str = function.signature.name
        is_whole = len(needed) == len(function.node_def)
        is_same = all(a is b for a, b in zip(nodes, needed, strict=True))
        if not paths and is_whole and is_same:
            return name
        new = type(function)()
        new.CopyFrom(function)
        new.signature.name = f"{name}_kte_run_{next(self.numbers)}"
        del new.node_def[:]
        new.node_def.extend(nodes)
        writer = Writer(new.node_def, is_function=True)
        for number, path in enumerate(paths):
            output = f"kte_ran_{number}"
            new.signature.output_arg.add(name=output, type=type_number("bool"))
            new.ret[output] = _was_taken(writer, output, path, branch, inner)
        self.functions[new.signature.name] = new
        return str(new.signature.name)


def _was_taken(
    writer: Writer,
    name: str,
    path: Path,
    branch: int,
    inner: Sequence[InnerOp],
) -> str:
    """Returns a reference to a boolean: whether a path was taken in one branch."""
    if path[0][1] != branch or len(path) == 1:
        return writer.constant(name, np.bool_(path[0][1] == branch))
    nodes = {node.name: node for node in writer.nodes}
    call = path[1][0]
    return f"{call}:output:{_position(nodes[call], path[1:], inner)}"


def _position(call: Node, path: Path, inner_ops: Sequence[InnerOp]) -> int:
    """Returns the position of the output that tells whether a path was taken."""
    paths = _paths(_inside(call.name, inner_ops))
    return len(call.attr["Tout"].list.type) - len(paths) + paths.index(path)


def _inside(call: str, inner_ops: Sequence[InnerOp]) -> list[InnerOp]:
    return [inner_op for inner_op in inner_ops if inner_op.path[0][0] == call]


def _paths(inner_ops: Sequence[InnerOp]) -> list[Path]:
    return [*dict.fromkeys(inner_op.path for inner_op in inner_ops)]


def _needed(function: Function, roots: Sequence[str]) -> list[Node]:
    """Returns the nodes on which the results of a function and the roots depend."""
    nodes = {node.name: node for node in function.node_def}
    missing = sorted({*roots} - nodes.keys())
    if missing:
        raise ValueError(
            "Operations must wait for those that branches contain. Received: "
            f"{missing}, which {function.signature.name} does not contain."
        )
    returned = [*function.ret.values(), *function.control_ret.values()]
    needed = _behind(nodes, [*map(source, returned), *roots])
    return [node for node in function.node_def if node.name in needed]


def _with_conditions(
    ops: Mapping[str, Any],
    body: Body,
    narrowed: _Narrowed,
    marks: Mapping[str, InnerOp],
) -> Body:
    """Makes nodes that wait for marks write variables only if the marks ran."""
    calls = {node.name: node for node in body.nodes}
    inner_ops = [*marks.values()]
    library = narrowed.functions
    used = effects_of(body, library).used
    waited = dict[str, frozenset[Path]]()
    nodes: list[Node] = []
    conditions = _Conditions(calls, inner_ops, nodes)
    for node in body.nodes:
        before = [
            waited.get(source(reference), frozenset()) for reference in node.input
        ]
        paths = frozenset[Path]().union(*before)
        positions = [position for position, _ in used.get(node.name, ())]
        if paths and written(node, positions, library):
            predicate = conditions.all_of(paths)
            node = running_if(predicate, ops[node.name], node, library)
        nodes.append(node)
        mark_paths = {marks[node.name].path} if node.name in marks else set[Path]()
        waited[node.name] = paths | mark_paths
    return dataclasses.replace(body, nodes=nodes)


@dataclasses.dataclass
class _Conditions:
    """References to booleans: whether all of some paths were taken.

    Attributes:
        calls: The nodes of a step by name.
        inner_ops: The operations in branches that others wait for.
        nodes: The list to which nodes are added.
        references: The references by set of paths.
    """

    calls: Mapping[str, Node]
    inner_ops: Sequence[InnerOp]
    nodes: list[Node]
    references: dict[frozenset[Path], str] = dataclasses.field(default_factory=dict)

    def all_of(self, paths: frozenset[Path]) -> str:
        """Returns a reference to a boolean: whether all of these paths were taken."""
        if paths not in self.references:
            first, *remaining = sorted(paths)
            reference = self._was_taken(first)
            if remaining:
                condition = self.all_of(frozenset(remaining))
                node = type(self.calls[first[0][0]])(
                    name=f"kte_both_{len(self.references)}",
                    op="LogicalAnd",
                    input=[reference, condition],
                )
                self.nodes.append(node)
                reference = node.name
            self.references[paths] = reference
        return self.references[paths]

    def _was_taken(self, path: Path) -> str:
        call = self.calls[path[0][0]]
        position = _position(call, path, self.inner_ops)
        return f"{call.name}:{position}" if position else call.name
