"""The memory that a program needs on each core, and its largest arrays."""

import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.planning import operations
from keras_tpu_estimator.planning.hlo import (
    ArrayType,
    Computation,
    Instruction,
    Module,
    dtype_name,
)
from keras_tpu_estimator.planning.loops import Run
from keras_tpu_estimator.planning.operations import Operation

# These instructions only name existing values or update them in place.
_MOVES_NOTHING = frozenset(
    "parameter tuple get-tuple-element bitcast while conditional call constant "
    "opt-barrier dynamic-update-slice".split()
)


# Bytes of a TPU tile; smaller copies cost almost nothing.
_SMALL = 8 * 128 * 4


@dataclasses.dataclass(frozen=True)
class ArrayBytes:
    """Arrays of one kind, on each core.

    Attributes:
        logical: The number of bytes of their elements.
        real: The number of bytes including the padding to complete tiles.
    """

    logical: int
    real: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of memory on each core.

    Attributes:
        arguments: The arguments of the program by kind, as named by the caller, and
            "unnamed" for the rest.
        results: The results that do not reuse the memory of arguments.
        temporary: The temporary memory; `None` if the compiler does not report it.
        code: The instructions, which do not count against the limit.
        limit: The memory that programs can use.
        beside: Other arrays on the core at that time by kind, such as batches that are
            staged ahead. Defaults to none.

    Example:

    >>> from keras_tpu_estimator.planning.memory import ArrayBytes
    >>> from keras_tpu_estimator.planning.memory import Memory
    >>> memory = Memory({"input": ArrayBytes(30, 32)}, 8, 60, 0, limit=200)
    >>> memory.peak, memory.share
    (100, 0.5)
    """

    arguments: Mapping[str, ArrayBytes]
    results: int | None
    temporary: int | None
    code: int | None
    limit: int
    beside: Mapping[str, ArrayBytes] = dataclasses.field(default_factory=dict)

    @property
    def arrays(self) -> dict[str, ArrayBytes]:
        """The arguments and the other arrays, by kind."""
        return {**self.arguments, **self.beside}

    @property
    def peak(self) -> int | None:
        """The memory in use; `None` if it is unknown."""
        if self.results is None or self.temporary is None:
            return None
        inputs = sum(size.real for size in self.arrays.values())
        return inputs + self.results + self.temporary

    @property
    def share(self) -> float | None:
        """The peak as a share of the limit."""
        return None if self.peak is None else self.peak / self.limit


def from_compiled(
    compiled: jax.stages.Compiled,
    module: Module,
    arguments: Mapping[str, PyTree],
    limit: int,
) -> Memory:
    """Returns the memory of a program, whose arguments are shapes with shardings."""
    kinds = sizes_by_kind(arguments, module)
    stats = compiled.memory_analysis()
    if stats is None:
        return Memory(kinds, None, None, None, limit)
    named = sum(size.real for size in kinds.values())
    unnamed = max(0, stats.argument_size_in_bytes - named)
    return Memory(
        kinds | ({"unnamed": ArrayBytes(unnamed, unnamed)} if unnamed else {}),
        stats.output_size_in_bytes - stats.alias_size_in_bytes,
        # This excludes the core's small memory.
        stats.temp_size_in_bytes,
        stats.generated_code_size_in_bytes,
        limit,
    )


def sizes_by_kind(
    arguments: Mapping[str, PyTree], module: Module | None
) -> dict[str, ArrayBytes]:
    """Returns the sizes of arguments, with the padding in the module, on each core."""
    padded = {
        _key(dtype_name(array.dtype), array.shape): array
        for array in (module and module.parameters) or ()
    }
    return {
        kind: total([_array_bytes(leaf, padded) for leaf in jax.tree.leaves(tree)])
        for kind, tree in arguments.items()
    }


def total(sizes: Iterable[ArrayBytes]) -> ArrayBytes:
    """Returns the sum of several sizes."""
    listed = [*sizes]
    return ArrayBytes(
        sum(size.logical for size in listed),
        sum(size.real for size in listed),
    )


def _array_bytes(
    leaf: Any, padded: Mapping[tuple[str, tuple[int, ...]], ArrayType]
) -> ArrayBytes:
    shape = tuple(leaf.shape)
    dtype: Any = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
    if getattr(leaf, "sharding", None) is not None:
        shape = leaf.sharding.shard_shape(shape)
    logical = math.prod(shape) * dtype.itemsize
    array = padded.get(_key(str(dtype), shape))
    return ArrayBytes(logical, array.padded_bytes if array else logical)


def _key(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    # XLA's names of narrow dtypes have no underscores.
    return dtype.replace("_", ""), shape


@dataclasses.dataclass(frozen=True)
class Allocation:
    """An array in a chip's memory.

    Attributes:
        operation: The operation that makes it.
        dtype: Its dtype.
        shape: Its shape on a core.
        bytes: Its size, with padding.
        count: The number of such arrays. Defaults to 1.

    Example:

    >>> from keras_tpu_estimator.planning.memory import Allocation
    >>> from keras_tpu_estimator.planning.operations import Operation
    >>> print(Allocation(Operation("dense", "add"), "float32", (2**20,), 2**22))
    4.0 MiB: add of dense, float32[1048576]
    """

    operation: Operation
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    count: int = 1

    def __str__(self) -> str:
        sizes = ",".join(map(str, self.shape))
        times = f"{self.count} x " if self.count > 1 else ""
        return (
            f"{times}{shown_bytes(self.bytes)}: {self.operation}, {self.dtype}[{sizes}]"
        )


def largest(
    module: Module, runs: Iterable[Run], count: int = 5
) -> tuple[Allocation, ...]:
    """Returns the largest distinct arrays that instructions make in main memory."""
    arrays = [
        (array, run.instruction)
        for run in runs
        if not run.is_fused
        and run.instruction.opcode not in _MOVES_NOTHING
        # Asynchronous instructions count at their `-done`.
        and not run.instruction.opcode.endswith(("-start", "-update"))
        # These fusions update an array in place.
        and "dynamic-update-slice" not in run.instruction.name
        for array in run.instruction.type
        if not array.space
    ]
    # Names cost time, so only candidates get one: each size is a distinct array.
    sizes = sorted({array.padded_bytes for array, _ in arrays})[-count:]
    named = [
        _of_array(module, instruction, array)
        for array, instruction in arrays
        if array.padded_bytes >= sizes[0]
    ]
    named.sort(key=lambda allocation: -allocation.bytes)
    return counted(named)[:count]


def counted(allocations: Iterable[Allocation]) -> tuple[Allocation, ...]:
    """Merges equal arrays into one with their count, in the same order."""
    counts = collections.Counter(allocations)
    return tuple(
        dataclasses.replace(allocation, count=allocation.count * times)
        for allocation, times in counts.items()
    )


def largest_of_instruction(
    module: Module, instruction: Instruction, size: int
) -> Allocation:
    """Returns the largest of an instruction's arrays, with the size of its buffer."""
    array = max(instruction.type, key=lambda array: array.padded_bytes)
    return dataclasses.replace(_of_array(module, instruction, array), bytes=size)


def shown_bytes(number: float) -> str:
    """Returns a number of bytes as text.

    >>> shown_bytes(3 * 2**29), shown_bytes(100)
    ('1.50 GiB', '100 B')
    """
    for unit, size, digits in (("GiB", 30, 2), ("MiB", 20, 1), ("KiB", 10, 1)):
        if number >= 2**size:
            return f"{number / 2**size:.{digits}f} {unit}"
    return f"{number:.0f} B"


def _of_array(module: Module, instruction: Instruction, array: ArrayType) -> Allocation:
    return Allocation(
        operations.within(module, instruction),
        dtype_name(array.dtype),
        array.shape,
        array.padded_bytes,
    )


def state_copies(
    module: Module, body: Computation | None, steps: int
) -> tuple[Allocation, ...]:
    """Returns the copies of state, such as variables, that a step makes in main memory
    in the body of a loop over `steps` steps.

    Omits copies of less than 4 KiB, which cost almost nothing, and inputs and outputs,
    which are one array for all steps.
    """
    if body is None:
        return ()
    return counted(_allocation(module, body, copy) for copy in _copies(body, steps))


def _allocation(module: Module, body: Computation, copy: Instruction) -> Allocation:
    """Returns the copy, named by the state that it reads or writes."""
    allocation = largest_of_instruction(module, copy, copy.type[0].padded_bytes)
    state = operations.carried_origin(module, body, copy.name)
    if state is None:
        return allocation
    return dataclasses.replace(allocation, operation=operations.copy_of(state))


def _copies(body: Computation, steps: int) -> Iterator[Instruction]:
    handed_on = set(body.root.operands) if body.root else set()
    for instruction in body.instructions:
        if instruction.opcode != "copy" or instruction.type[0].space:
            continue
        array = instruction.type[0]
        if array.bytes < _SMALL or array.shape[:1] == (steps,):
            continue
        if instruction.name in handed_on or _is_given(body, instruction):
            yield instruction


def _is_given(body: Computation, copy: Instruction) -> bool:
    """Returns whether an instruction copies a value from the previous step."""
    element = body.by_name.get(copy.operands[0])
    if element is None or element.opcode != "get-tuple-element":
        return False
    source = body.by_name.get(element.operands[0])
    return source is not None and source.opcode == "parameter"
