"""What XLA's names of operations say to whoever wrote the model."""

import dataclasses
import re

from keras_tpu_estimator.ground.base.source_line import SourceLine
from keras_tpu_estimator.planning import graph_names, origins
from keras_tpu_estimator.planning.hlo import Instruction, Module

_CALLS = re.compile(r"\b(?:jit|pjit|custom_jvp_call|custom_vjp_call)\([^()]*\)")
_TRANSFORMED = re.compile(r"\b(?:transpose|jvp|vmap|remat\d*|checkpoint)\(|[()]")
_ARGUMENT = re.compile(r"^\w+\['([^']+)'\]$")
# What JAX names after itself, not after a layer.
_STRUCTURE = frozenset(
    "while body cond closed_call shard_map checkpoint rematted_computation "
    "custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr branch_0_fun "
    "branch_1_fun scan remat remat2 core_call custom_partitioning "
    "eval_jaxpr".split()
)


@dataclasses.dataclass(frozen=True)
class Operation:
    """Where an instruction comes from.

    Attributes:
        layer: The names of the layers that it is in, such as "bert/dense_1",
            or "" if it is in none.
        name: The operation, such as "dot_general".
        is_gradient: Whether it is a part of the backward pass.
        line: The user's line that it comes from, or `None` if it comes from
            none or that is not known.
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
    """Returns the same as `of`, with copies named by what they copy.

    Args:
        module: The program of the instruction.
    """
    origin = origins.of(module, instruction)
    return of(origin) if origin is instruction else copy_of(origin)


def copy_of(origin: Instruction) -> Operation:
    """Returns the operation that copies the result of an instruction."""
    made = of(origin)
    path = "/".join(filter(None, (made.layer, made.name)))
    return dataclasses.replace(made, layer=path, name="copy")


def of(instruction: Instruction) -> Operation:
    """Returns the operation that an instruction comes from."""
    if not instruction.op_name:
        made = Operation("", f"a {instruction.opcode}")
    else:
        made = parse(instruction.op_name)
    return dataclasses.replace(made, line=instruction.line)


def parse(op_name: str) -> Operation:
    """Reads the name of an operation.

    Args:
        op_name: The names that JAX has nested, such as
            "jit(train_steps)/while/body/jvp(dense_1)/dot_general"; or what an
            argument is called, such as "values['dense_1/kernel']".

    Example:

    >>> from keras_tpu_estimator.planning import operations
    >>> str(operations.parse("jit(f)/while/body/transpose(jvp(dense))/mul"))
    'mul of dense (gradient)'
    """
    argument = _ARGUMENT.match(op_name)
    if argument is not None:
        layer, _, name = argument[1].rpartition("/")
        return Operation(layer, name)
    in_graph = graph_names.of(op_name)
    if in_graph is not None:
        layer, _, name = in_graph.name.rpartition("/")
        return Operation(layer, name, in_graph.is_gradient)
    plain = _TRANSFORMED.sub("", _CALLS.sub("", op_name))
    parts = [part for part in plain.split("/") if part not in _STRUCTURE]
    names = [part for part in parts if part]
    if not names:
        return Operation("", op_name)
    return Operation("/".join(names[:-1]), names[-1], "transpose(" in op_name)
