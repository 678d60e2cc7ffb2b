"""The instructions that a compiled program runs, their counts and their loops."""

import dataclasses
import re
from collections.abc import Iterator, Mapping

from keras_tpu_estimator.planning.hlo import Computation, Instruction, Module

# These computations run inside an instruction or for each element.
_OF_ELEMENTS = ("condition", "to_apply")
_CALLS = ("call", "call-start")
_ENDS = ("-done", "-update")


_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


@dataclasses.dataclass(frozen=True)
class Run:
    """An instruction with the known number of times that it runs in one round of its
    outer loop; `is_known` is whether all inner loops have a known number of rounds, and
    `is_fused` whether it is part of another instruction.
    """

    instruction: Instruction
    computation: Computation
    times: int = 1
    is_known: bool = True
    is_fused: bool = False


@dataclasses.dataclass(frozen=True)
class Parts:
    """The instructions that a program runs.

    Attributes:
        step: The instructions in one round of the loop over steps, or all instructions
            if there is no such loop.
        outside: The instructions outside that loop.
        share: The share of `step` that belongs to one step, because XLA may merge two
            steps into one.
        body: The body of the loop, or `None` without a loop.
    """

    step: tuple[Run, ...]
    outside: tuple[Run, ...]
    share: float = 1.0
    body: Computation | None = None


def split(module: Module, steps: int, has_loop: bool | None = None) -> Parts:
    """Finds the instructions of a program's steps. By default a program has a loop if
    it has several steps, because XLA makes no loop for a single step.
    """
    entry = module.entry
    if entry is None:
        return Parts((), ())
    has_loop = steps > 1 if has_loop is None else has_loop
    loop = _loop_over_steps(module, entry, steps) if has_loop else None
    if loop is None:
        # Without a loop, the instructions make all steps.
        return Parts(tuple(_reached(module, entry)), (), 1 / steps)
    body, count = loop
    return Parts(
        tuple(_reached(module, body)),
        tuple(_reached(module, entry, leaves_out=body)),
        1.0 if count is None else count / steps,
        body,
    )


def _loop_over_steps(
    module: Module, entry: Computation, steps: int
) -> tuple[Computation, int | None] | None:
    """Returns the body of the loop over steps, and its number of rounds."""
    loops = [
        (
            body,
            trip_count(run.computation, run.instruction, module.computations),
        )
        for run in _reached(module, entry, enters_loops=False)
        if (body := _called(module, run.instruction, "body"))
    ]

    def fits(loop: tuple[Computation, int | None]) -> tuple[int, int]:
        body, count = loop
        length = sum(1 for _ in _reached(module, body))
        # When the loop over steps is unrolled, other loops belong to the network.
        return (2 if count == steps else 1 if count is None else 0), length

    best = max(loops, key=fits, default=None)
    if best is None or (best[1] is not None and steps % max(1, best[1])):
        return None
    return best


def _reached(
    module: Module,
    computation: Computation,
    state: Run | None = None,
    enters_loops: bool = True,
    leaves_out: Computation | None = None,
) -> Iterator[Run]:
    """Yields the instructions of a computation and of those that it calls."""
    for instruction in computation.instructions:
        run = Run(instruction, computation)
        if state:
            run = dataclasses.replace(
                state, instruction=instruction, computation=computation
            )
        yield run
        for use, inner in _inner(module, instruction):
            if use == "body":
                if not enters_loops or inner is leaves_out:
                    continue
                count = trip_count(computation, instruction, module.computations)
                times = run.times * (1 if count is None else count)
                is_known = run.is_known and count is not None
                inside = dataclasses.replace(run, times=times, is_known=is_known)
            else:
                is_fused = run.is_fused or instruction.opcode == "fusion"
                inside = dataclasses.replace(run, is_fused=is_fused)
            yield from _reached(module, inner, inside, enters_loops, leaves_out)


def _inner(
    module: Module, instruction: Instruction
) -> Iterator[tuple[str, Computation]]:
    """Yields the computations that an instruction runs once each time it runs."""
    if instruction.opcode.endswith(_ENDS):
        return
    for use in instruction.called:
        inner = _called(module, instruction, use)
        # A call uses the same attribute as a reduction for its computation.
        if inner and (use not in _OF_ELEMENTS or instruction.opcode in _CALLS):
            yield use, inner


def _called(module: Module, instruction: Instruction, use: str) -> Computation | None:
    return module.computations.get(instruction.called.get(use, ""))


def trip_count(
    computation: Computation,
    loop: Instruction,
    computations: Mapping[str, Computation],
) -> int | None:
    """Returns the number of rounds of a loop that counts up, or `None` for others."""
    annotation = _KNOWN.search(loop.text)
    if annotation:
        return int(annotation[1])
    condition = computations.get(loop.called.get("condition", ""))
    body = computations.get(loop.called.get("body", ""))
    if condition is None or body is None:
        return None
    index, limit = _limit(condition)
    if index is None or limit is None:
        return None
    first = _constant(_element(computation, loop.operands, index))
    step = _step(body, index)
    if first is None or not step:
        return None
    return max(0, -(-(limit - first) // step))


def _limit(condition: Computation) -> tuple[int | None, int | None]:
    """Returns the index of a loop's counter in its state, and the limit."""
    test = condition.root
    if (
        test is None
        or test.opcode != "compare"
        or test.attribute("direction") != "LT"
        or len(test.operands) != 2
    ):
        return None, None
    counter, limit = (_origin(condition, name) for name in test.operands)
    return _index(counter), _constant(limit)


def _step(body: Computation, index: int) -> int | None:
    """Returns the number that a body adds to an element of the state."""
    value = _element(body, (body.root.name,) if body.root else (), index)
    total = 0
    while value is not None and value.opcode == "add":
        # XLA may write the constant first, and may merge two rounds into one.
        one, other = (_origin(body, name) for name in value.operands)
        if _constant(one) is not None:
            one, other = other, one
        added = _constant(other)
        if added is None:
            return None
        total, value = total + added, one
    return total if _index(value) == index else None


def _element(
    computation: Computation, names: tuple[str, ...], index: int
) -> Instruction | None:
    """Returns the instruction that makes an element of a tuple."""
    tuple_ = _origin(computation, names[0]) if names else None
    if tuple_ is None or tuple_.opcode != "tuple" or index >= len(tuple_.operands):
        return None
    return _origin(computation, tuple_.operands[index])


def _origin(computation: Computation, name: str) -> Instruction | None:
    """Returns the instruction that makes a value, before any copies."""
    instruction = computation.by_name.get(name)
    while (
        instruction
        and instruction.opcode in ("copy", "bitcast")
        and instruction.operands
    ):
        instruction = computation.by_name.get(instruction.operands[0])
    return instruction


def _index(instruction: Instruction | None) -> int | None:
    if instruction is None or instruction.opcode != "get-tuple-element":
        return None
    index = instruction.attribute("index")
    return int(index) if index else None


def _constant(instruction: Instruction | None) -> int | None:
    if (
        instruction is None
        or instruction.opcode != "constant"
        or not instruction.literal.isdigit()
    ):
        return None
    return int(instruction.literal)
