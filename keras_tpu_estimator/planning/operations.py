"""The names of instructions: their layer, operation and source line.

XLA adds copies without names. A copy is named after the value that it copies: an
argument of the program, or the result of an operation.
"""

import dataclasses
import re

from keras_tpu_estimator.base.common.user_code import SourceLine
from keras_tpu_estimator.planning import source_lines
from keras_tpu_estimator.planning.hlo import Computation, Instruction, Module

_CALLS = re.compile(r"\b(?:jit|pjit|custom_jvp_call|custom_vjp_call)\([^()]*\)")
_TRANSFORMED = re.compile(r"\b(?:transpose|jvp|vmap|remat\d*|checkpoint)\(|[()]")
_ARGUMENT = re.compile(r"^\w+\['([^']+)'\]$")
# JAX adds these names; they do not belong to layers.
_STRUCTURE = frozenset(
    "while body cond closed_call shard_map checkpoint rematted_computation "
    "custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr branch_0_fun "
    "branch_1_fun scan remat remat2 core_call custom_partitioning "
    "eval_jaxpr".split()
)


# The result of these has the value of their first operand.
_SAME = frozenset(
    "bitcast copy copy-done copy-start opt-barrier transpose while".split()
)
# No program nests values this deeply.
_MOST_STEPS = 1000


def origin(module: Module, instruction: Instruction) -> Instruction:
    """Returns the named instruction whose value a copy contains, or the instruction
    itself if it is no copy, has a name, or copies an unnamed value.
    """
    if instruction.op_name or not instruction.opcode.startswith("copy"):
        return instruction
    return _named(module, _Place(instruction, ())) or instruction


def carried_origin(module: Module, body: Computation, name: str) -> Instruction | None:
    """Returns the origin of a result that a loop carries to its next round; `None` if
    it is not carried or its origin has no name.
    """
    state = next((i for i in body.instructions if i.opcode == "parameter"), None)
    if body.root is None or state is None or name not in body.root.operands:
        return None
    return _named(module, _Place(state, (body.root.operands.index(name),)))


def _named(module: Module, value: "_Place") -> Instruction | None:
    """Returns the first instruction with a name that produced the value."""
    for _ in range(_MOST_STEPS):
        if value.instruction.op_name and not value.elements:
            return value.instruction
        before = _before(module, value)
        if before is None:
            return None
        value = before
    return None


class _Place:
    """A value: the result of an instruction, or an element of a tuple, by its indices,
    the outermost one last.
    """

    def __init__(self, instruction: Instruction, elements: tuple[int, ...]):
        self.instruction = instruction
        self.elements = elements


def _before(module: Module, value: _Place) -> _Place | None:
    """Returns the previous location of a value, or `None` if it is unknown."""
    instruction, elements = value.instruction, value.elements
    home = module.computation_of.get(instruction.name)
    if home is None:
        return None
    if instruction.opcode == "parameter":
        loop = module.loops.get(home.name)
        return None if loop is None else _operand(module, loop, 0, elements)
    if instruction.opcode == "get-tuple-element":
        index = int(instruction.attribute("index") or 0)
        start = home.by_name.get(instruction.operands[0])
        if start is not None and start.opcode == "copy-start":
            return _Place(start, elements)
        return _operand(module, instruction, 0, (*elements, index))
    if instruction.opcode == "tuple" and elements:
        *inner, index = elements
        return _operand(module, instruction, index, tuple(inner))
    if instruction.opcode in _SAME:
        return _operand(module, instruction, 0, elements)
    return None


def _operand(
    module: Module,
    instruction: Instruction,
    number: int,
    elements: tuple[int, ...],
) -> _Place | None:
    home: Computation | None = module.computation_of.get(instruction.name)
    if home is None or number >= len(instruction.operands):
        return None
    operand = home.by_name.get(instruction.operands[number])
    return None if operand is None else _Place(operand, elements)


@dataclasses.dataclass(frozen=True)
class Operation:
    """The layer, name and source line of an instruction.

    Attributes:
        layer: The names of the enclosing layers, such as "bert/dense_1", or "" for
            none.
        name: The operation, such as "dot_general".
        is_gradient: Whether it belongs to the backward pass.
        line: The user's line that it comes from, or `None` if unknown.
    """

    layer: str
    name: str
    is_gradient: bool = False
    line: SourceLine | None = None

    def __str__(self) -> str:
        text = self.name
        if self.layer:
            text = f"{text} of {self.layer}"
        if self.line is not None:
            text = f"{text} at {self.line}"
        return f"{text} (gradient)" if self.is_gradient else text


def within(module: Module, instruction: Instruction) -> Operation:
    """Returns the operation of an instruction; a copy is named after its origin."""
    source = origin(module, instruction)
    return from_instruction(source) if source is instruction else copy_of(source)


def copy_of(origin: Instruction) -> Operation:
    """Returns the operation that copies the result of an instruction."""
    operation = from_instruction(origin)
    path = "/".join(filter(None, (operation.layer, operation.name)))
    return dataclasses.replace(operation, layer=path, name="copy")


def from_instruction(instruction: Instruction) -> Operation:
    """Returns the operation of an instruction."""
    if not instruction.op_name:
        operation = Operation("", f"a {instruction.opcode}")
    else:
        operation = parse(instruction.op_name)
    return dataclasses.replace(operation, line=instruction.line)


def parse(op_name: str) -> Operation:
    """Parses JAX's nested names of an operation, or the name of an argument, such as
    "values['dense_1/kernel']".

    >>> str(parse("jit(f)/while/body/transpose(jvp(dense))/mul"))
    'mul of dense (gradient)'
    """
    argument = _ARGUMENT.match(op_name)
    if argument is not None:
        layer, _, name = argument[1].rpartition("/")
        return Operation(layer, name)
    in_graph = source_lines.graph_name(op_name)
    if in_graph is not None:
        layer, _, name = in_graph.name.rpartition("/")
        return Operation(layer, name, in_graph.is_gradient)
    plain = _TRANSFORMED.sub("", _CALLS.sub("", op_name))
    parts = [part for part in plain.split("/") if part not in _STRUCTURE]
    names = [part for part in parts if part]
    if not names:
        return Operation("", op_name)
    return Operation("/".join(names[:-1]), names[-1], "transpose(" in op_name)
