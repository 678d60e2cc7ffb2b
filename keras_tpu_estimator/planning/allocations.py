"""What takes most of a chip's memory."""

import collections
import dataclasses
from collections.abc import Iterable

from keras_tpu_estimator.planning import operations
from keras_tpu_estimator.planning.array_types import ArrayType, dtype_name
from keras_tpu_estimator.planning.hlo import Instruction, Module
from keras_tpu_estimator.planning.loops import Run
from keras_tpu_estimator.planning.operations import Operation

# Other names of what there is.
_NAMES = frozenset(
    "parameter tuple get-tuple-element bitcast while conditional call constant "
    "opt-barrier dynamic-update-slice".split()
)


@dataclasses.dataclass(frozen=True)
class Allocation:
    """An array in a chip's memory.

    Attributes:
        operation: What has made it.
        dtype: Its dtype.
        shape: Its shape on a core.
        bytes: What it takes, with padding.
        count: How many such arrays there are. Defaults to 1.

    Example:

    >>> from keras_tpu_estimator.planning.allocations import Allocation
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
    """The largest arrays that instructions make in a chip's large memory.

    Args:
        module: The program.
        runs: What it runs.
        count: How many kinds of them are wanted at most. Defaults to 5.
    """
    found = [
        (array, run.instruction)
        for run in runs
        if not run.is_fused
        and run.instruction.opcode not in _NAMES
        # What is started is there when it is done.
        and not run.instruction.opcode.endswith(("-start", "-update"))
        # It is written where it is.
        and "dynamic-update-slice" not in run.instruction.name
        for array in run.instruction.type
        if not array.space
    ]
    # Names cost time, so only candidates get one: each size is another kind.
    sizes = sorted({array.padded_bytes for array, _ in found})[-count:]
    named = [
        _of_array(module, instruction, array)
        for array, instruction in found
        if array.padded_bytes >= sizes[0]
    ]
    named.sort(key=lambda each: -each.bytes)
    return counted(named)[:count]


def counted(allocations: Iterable[Allocation]) -> tuple[Allocation, ...]:
    """Returns equal arrays as one with their count, in the same order.

    Example:

    >>> from keras_tpu_estimator.planning.operations import Operation
    >>> one = Allocation(Operation("dense", "add"), "float32", (2**20,), 2**22)
    >>> [str(each) for each in counted([one, one])]
    ['2 x 4.0 MiB: add of dense, float32[1048576]']
    """
    counts = collections.Counter(allocations)
    return tuple(
        dataclasses.replace(each, count=each.count * times)
        for each, times in counts.items()
    )


def of_instruction(module: Module, instruction: Instruction, size: int) -> Allocation:
    """The largest array that an instruction makes, in a place of some size.

    Args:
        module: The program.
        instruction: Its instruction, which returns an array at least.
        size: Bytes of the place.
    """
    array = max(instruction.type, key=lambda array: array.padded_bytes)
    return dataclasses.replace(_of_array(module, instruction, array), bytes=size)


def shown_bytes(number: float) -> str:
    """A number of bytes as messages have it.

    Example:

    >>> from keras_tpu_estimator.planning.allocations import shown_bytes
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
