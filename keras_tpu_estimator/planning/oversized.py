"""How XLA has laid out a program that does not fit.

Its error says no more than how much it needs. So it is compiled again, and
XLA writes down what it has found out before it gives up.
"""

import dataclasses
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any

import jax

from keras_tpu_estimator.ground.base.source_line import SourceLine
from keras_tpu_estimator.planning import allocations, hlo
from keras_tpu_estimator.planning.allocations import Allocation
from keras_tpu_estimator.planning.hlo import Instruction, Module

_TOTAL = re.compile(r"^Memory Space: default.*\nTotal bytes: (\d+)", re.M)
_IN_LARGE_MEMORY = re.compile(r"\d+: size \d+, (?:page \d+, )?preallocated-temp:")
_VALUE = re.compile(r"value: <\d+ ([\w.\-]+)\S* .*?> \(size=(\d+),offset=(\d+)\)")
# A hundredth of the largest one is worth a line.
_SMALLEST = 100


@dataclasses.dataclass(frozen=True)
class Layout:
    """What of a program is known that does not fit.

    Attributes:
        module: The program, or `None` if XLA has not written it down.
        used: Bytes that it needs on a core, or `None` likewise.
        largest: The largest arrays that it makes.
    """

    module: Module | None
    used: int | None
    largest: tuple[Allocation, ...]


def laid_out(
    lowered: jax.stages.Lowered,
    count: int = 5,
    in_graph: Callable[[str], SourceLine | None] | None = None,
) -> Layout:
    """Has XLA write down a program that does not fit.

    Args:
        count: How many kinds of arrays are wanted at most. Defaults to 5.
        in_graph: As in `SourceLines`. Defaults to `None`.

    Example:

    >>> import jax, jax.numpy as jnp
    >>> from keras_tpu_estimator.planning import oversized, topologies
    >>> core = topologies.parse("v5e:1x1").machine().first
    >>> core = jax.sharding.SingleDeviceSharding(core)
    >>> x = jax.ShapeDtypeStruct((2**20, 2**18), "float32", sharding=core)
    >>> lowered = jax.jit(lambda x: jnp.sort(x) + x[::-1]).lower(x)
    >>> oversized.laid_out(lowered).used > 2**40
    True
    """
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {
            "xla_dump_to": folder,
            "xla_dump_hlo_as_text": True,
        }
        try:
            lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError:
            pass
        text = _read(folder, "after_optimizations")
        assignment = _read(folder, "after_optimizations-buffer-assignment")
        total = _TOTAL.search(_read(folder, "after_optimizations-memory-usage-report"))
    module = hlo.parse(text, in_graph)
    return Layout(
        module if module.entry else None,
        int(total[1]) if total else None,
        _largest(assignment, module, count),
    )


def _read(folder: str, name: str) -> str:
    """What XLA has written under a name, or "" if there is nothing."""
    found = sorted(pathlib.Path(folder).glob(f"*.{name}.txt"))
    return found[-1].read_text("utf-8") if found else ""


def _largest(assignment: str, module: Module, count: int) -> tuple[Allocation, ...]:
    """The largest places of temporary memory, by what they are first for."""
    made = {
        instruction.name: instruction
        for computation in module.computations.values()
        for instruction in computation.instructions
    }
    places: dict[int, tuple[int, Instruction]] = {}
    for part in assignment.split("\nallocation ")[1:]:
        if not _IN_LARGE_MEMORY.match(part):
            continue
        for name, size, offset in _VALUE.findall(part):
            held = places.get(int(offset))
            if name in made and (held is None or int(size) > held[0]):
                places[int(offset)] = int(size), made[name]
    largest = sorted(places.values(), key=lambda place: -place[0])
    return allocations.counted(
        allocations.of_instruction(module, instruction, size)
        for size, instruction in largest
        if size * _SMALLEST >= largest[0][0]
    )[:count]
