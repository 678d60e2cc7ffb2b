"""Copies of what one step hands on to the next, such as variables."""

import dataclasses
from collections.abc import Iterator

from keras_tpu_estimator.planning import allocations, operations, origins
from keras_tpu_estimator.planning.allocations import Allocation
from keras_tpu_estimator.planning.hlo import Computation, Instruction, Module

# Bytes of a tile of a TPU: less is hardly anything.
_SMALL = 8 * 128 * 4


def of(module: Module, body: Computation | None, steps: int) -> tuple[Allocation, ...]:
    """The copies that a step makes in a chip's large memory.

    Those of less than 4 KiB cost nothing, and are left out. So are inputs and
    outputs, of which there is one array for all steps.

    Args:
        module: The program.
        body: That of the loop over steps; `None` if there is no such loop.
        steps: How many it makes.

    Example:

    >>> from keras_tpu_estimator.planning import hlo, state_copies
    >>> state_copies.of(hlo.parse(""), None, 1)
    ()
    """
    if body is None:
        return ()
    return allocations.counted(
        _allocation(module, body, each) for each in _copies(body, steps)
    )


def _allocation(module: Module, body: Computation, copy: Instruction) -> Allocation:
    """The copy, named by the state that it becomes or is of."""
    made = allocations.of_instruction(module, copy, copy.type[0].padded_bytes)
    state = origins.of_handed_on(module, body, copy.name)
    if state is None:
        return made
    return dataclasses.replace(made, operation=operations.copy_of(state))


def _copies(body: Computation, steps: int) -> Iterator[Instruction]:
    handed_on = set(body.root.operands) if body.root else set()
    for each in body.instructions:
        if each.opcode != "copy" or each.type[0].space:
            continue
        array = each.type[0]
        if array.bytes < _SMALL or array.shape[:1] == (steps,):
            continue
        if each.name in handed_on or _is_given(body, each):
            yield each


def _is_given(body: Computation, copy: Instruction) -> bool:
    """Whether it copies what the body has from the step before."""
    made = body.by_name.get(copy.operands[0])
    if made is None or made.opcode != "get-tuple-element":
        return False
    source = body.by_name.get(made.operands[0])
    return source is not None and source.opcode == "parameter"
