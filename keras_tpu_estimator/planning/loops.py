"""Which instructions a compiled program runs, how often, and in which loop."""

import dataclasses
from collections.abc import Iterator

from keras_tpu_estimator.planning.hlo import Computation, Instruction, Module
from keras_tpu_estimator.planning.trip_counts import trip_count

# They are run inside of an instruction, or tell what one does with an element.
_OF_ELEMENTS = ("condition", "to_apply")
_CALLS = ("call", "call-start")
_ENDS = ("-done", "-update")


@dataclasses.dataclass(frozen=True)
class Run:
    """An instruction where it runs.

    Attributes:
        times: How often it runs while its loop runs once, as far as is known.
        is_known: Whether loops inside of that one say how often they run.
        is_fused: Whether it is a part of another instruction.
    """

    instruction: Instruction
    computation: Computation
    times: int = 1
    is_known: bool = True
    is_fused: bool = False


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a program runs.

    Attributes:
        step: What its loop over steps runs once; all that there is if it has
            no such loop.
        others: What it runs beside that loop.
        share: How much of `step` is that of one step. XLA may have made two of
            them one.
        body: The computation that the loop repeats, if there is a loop.
    """

    step: tuple[Run, ...]
    others: tuple[Run, ...]
    share: float = 1.0
    body: Computation | None = None


def split(module: Module, steps: int, has_loop: bool | None = None) -> Parts:
    """Finds the steps of a program.

    Args:
        steps: How many it has room for.
        has_loop: Whether it has a loop over them. By default a program of
            several steps has one, and of a single step XLA makes no loop.

    Example:

    >>> from keras_tpu_estimator.planning import hlo
    >>> from keras_tpu_estimator.planning import loops
    >>> module = hlo.parse('''ENTRY %main (x: f32[2]) -> f32[2] {
    ...   %x = f32[2]{0} parameter(0)
    ...   ROOT %y = f32[2]{0} tanh(%x)
    ... }''')
    >>> [run.instruction.name for run in loops.split(module, 1).step]
    ['x', 'y']
    """
    entry = module.entry
    if entry is None:
        return Parts((), ())
    has_loop = steps > 1 if has_loop is None else has_loop
    found = _loop_over_steps(module, entry, steps) if has_loop else None
    if found is None:
        # Without a loop, what there is makes all of them.
        return Parts(tuple(_reached(module, entry)), (), 1 / steps)
    body, count = found
    return Parts(
        tuple(_reached(module, body)),
        tuple(_reached(module, entry, leaves_out=body)),
        1.0 if count is None else count / steps,
        body,
    )


def _loop_over_steps(
    module: Module, entry: Computation, steps: int
) -> tuple[Computation, int | None] | None:
    """The body of the loop over steps, and how often it runs."""
    found = [
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
        # Others are loops of a network, when that over steps is unrolled.
        return (2 if count == steps else 1 if count is None else 0), length

    best = max(found, key=fits, default=None)
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
    """What runs in a computation, and in those that it calls."""
    for each in computation.instructions:
        run = Run(each, computation)
        if state:
            run = dataclasses.replace(state, instruction=each, computation=computation)
        yield run
        for use, inner in _inner(module, each):
            if use == "body":
                if not enters_loops or inner is leaves_out:
                    continue
                count = trip_count(computation, each, module.computations)
                times = run.times * (1 if count is None else count)
                is_known = run.is_known and count is not None
                inside = dataclasses.replace(run, times=times, is_known=is_known)
            else:
                is_fused = run.is_fused or each.opcode == "fusion"
                inside = dataclasses.replace(run, is_fused=is_fused)
            yield from _reached(module, inner, inside, enters_loops, leaves_out)


def _inner(
    module: Module, instruction: Instruction
) -> Iterator[tuple[str, Computation]]:
    """What an instruction runs as often as it runs."""
    if instruction.opcode.endswith(_ENDS):
        return
    for use in instruction.called:
        inner = _called(module, instruction, use)
        # A call names what it runs as a reduction does what it reduces by.
        if inner and (use not in _OF_ELEMENTS or instruction.opcode in _CALLS):
            yield use, inner


def _called(module: Module, instruction: Instruction, use: str) -> Computation | None:
    return module.computations.get(instruction.called.get(use, ""))
