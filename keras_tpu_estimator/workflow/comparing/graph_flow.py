"""The forward pass of a TensorFlow graph, by the tensors between variables and loss."""

import dataclasses
import graphlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator.base.common.user_code import SourceLine, is_of_user
from keras_tpu_estimator.workflow.comparing.dataflow import INPUT, Operation

_FLOATS = ("float32", "float16", "bfloat16", "float64")
_VARIABLES = ("VarHandleOp", "VariableV2")
# Operations that draw random numbers.
_RANDOM = ("Random", "StatelessRandom", "TruncatedNormal", "Multinomial")
# Operations that only read a variable, which the operations of JAX do not have.
_READS = ("ReadVariableOp", "Identity", "Cast")


@dataclasses.dataclass(frozen=True)
class GraphFlow:
    """The operations of a graph's forward pass.

    Attributes:
        operations: In the order of computation. Sizes are those of the tensors of one
            run, which `sized` sets.
        names: The name of the tensor of each operation.
        random: The user's lines that draw random numbers, as texts.
    """

    operations: tuple[Operation, ...]
    names: tuple[str, ...]
    random: tuple[str, ...]

    @classmethod
    def from_loss(cls, loss: Any) -> "GraphFlow":
        """Returns the operations behind a loss."""
        search = _Search(loss)
        return cls(
            tuple(search.operations),
            tuple(search.names),
            tuple(sorted(search.random)),
        )

    def only(self, names: Collection[str]) -> "GraphFlow":
        """Returns the operations whose tensors have these names."""
        numbers = [n for n, name in enumerate(self.names) if name in names]
        new = {number: position for position, number in enumerate(numbers)}
        operations = (self.operations[number] for number in numbers)
        return GraphFlow(
            tuple(
                dataclasses.replace(
                    one, sources=tuple(new[s] for s in one.sources if s in new)
                )
                for one in operations
            ),
            tuple(self.names[number] for number in numbers),
            self.random,
        )

    def sized(self, shapes: Mapping[str, Sequence[int]]) -> tuple[Operation, ...]:
        """Returns the operations with the sizes of their tensors."""
        return tuple(
            dataclasses.replace(one, size=int(np.prod(shapes[name])))
            for one, name in zip(self.operations, self.names, strict=True)
        )


class _Search:
    """The search for the operations behind a loss, in the order of computation."""

    def __init__(self, loss: Any):
        self.operations: list[Operation] = []
        self.names: list[str] = []
        self.random: set[str] = set()
        self._variables: dict[str, frozenset[str]] = {}
        self._numbers: dict[str, tuple[int, ...]] = {}
        ops = _in_order(loss.op)
        for op in ops:
            self._enter(op)
        crossing = {*self._numbers[loss.op.name], *self._crossing(ops)}
        self.operations = [
            dataclasses.replace(one, crosses=number in crossing)
            for number, one in enumerate(self.operations)
        ]

    def _enter(self, op: Any) -> None:
        if op.type.startswith(_RANDOM):
            self.random.add(str(_line_of(op) or op.name))
        inputs = [tensor.op.name for tensor in op.inputs]
        variables = frozenset().union(*(self._variables[name] for name in inputs))
        if op.type in _VARIABLES:
            variables = frozenset([op.name])
        elif op.type.startswith("Placeholder"):
            variables = frozenset([INPUT])
        self._variables[op.name] = variables
        sources = sorted({n for name in inputs for n in self._numbers[name]})
        self._numbers[op.name] = tuple(sources)
        is_read = op.type in _READS and len(variables) == 1 and INPUT not in variables
        if op.type in _VARIABLES or is_read or not variables:
            return
        floats = [t for t in op.outputs if _is_number(t)]
        numbers = range(len(self.names), len(self.names) + len(floats))
        for tensor in floats:
            self.names.append(tensor.name)
            self.operations.append(
                Operation(op.type, variables, 0, False, tuple(sources), _line_of(op))
            )
        if floats:
            self._numbers[op.name] = tuple(numbers)

    def _crossing(self, ops: Sequence[Any]) -> Iterator[int]:
        """Yields the operations that one which depends on other variables uses."""
        for op in ops:
            for tensor in op.inputs:
                source = tensor.op.name
                if self._variables[source] != self._variables[op.name]:
                    yield from self._numbers[source]


def _is_number(tensor: Any) -> bool:
    """Returns whether a tensor has floats and a known number of axes."""
    is_float = tensor.dtype.base_dtype.name in _FLOATS
    return is_float and tensor.shape.rank is not None


def _in_order(op: Any) -> list[Any]:
    """Returns an operation and all that it depends on, each after its inputs.

    Creation has another order where the host computes tensors for an operation.
    """
    ops = {op.name: op}
    inputs: dict[str, list[str]] = {}
    open_ops = [op]
    while open_ops:
        current = open_ops.pop()
        sources = {tensor.op.name: tensor.op for tensor in current.inputs}
        inputs[current.name] = [*sources]
        open_ops += [source for name, source in sources.items() if name not in ops]
        ops |= sources
    return [ops[name] for name in graphlib.TopologicalSorter(inputs).static_order()]


def _line_of(op: Any) -> SourceLine | None:
    """Returns the user's line that made an operation, or `None`."""
    for frame in reversed(op.traceback or ()):
        if is_of_user(frame[0]):
            return SourceLine(frame[0], frame[1])
    return None


def computable(
    names: Sequence[str], request: Callable[[Iterable[str]], Iterable[str]]
) -> set[str]:
    """Returns the names of tensors that the devices can compute.

    `request` makes the tensors of several names leave the devices, or raises
    `ValueError` if one of them cannot.
    """
    possible: set[str] = set()
    open_parts = [[*names]] if names else []
    while open_parts:
        part = open_parts.pop()
        try:
            possible.update(request(part))
        except ValueError:
            if len(part) > 1:
                half = len(part) // 2
                open_parts += [part[half:], part[:half]]
    return possible
