"""The figures of a compiled loop, for each core and step."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Self

import jax

from keras_tpu_estimator.ground.base.source_line import SourceLine
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.planning import (
    allocations,
    bounds,
    callbacks,
    collectives,
    hlo,
    loops,
    memory,
    state_copies,
    work,
)
from keras_tpu_estimator.planning.allocations import Allocation
from keras_tpu_estimator.planning.boards import Board
from keras_tpu_estimator.planning.bounds import Bounds
from keras_tpu_estimator.planning.collectives import Collective
from keras_tpu_estimator.planning.hlo import Module
from keras_tpu_estimator.planning.loops import Run
from keras_tpu_estimator.planning.memory import Memory


@dataclasses.dataclass(frozen=True)
class Aliases:
    """Which arguments give their memory to results.

    Attributes:
        donated: How many arguments may.
        aliased: How many do.
        missing: The names of those that may and do not; `None` if XLA has left
            arguments out, so that they cannot be told apart.
    """

    donated: int
    aliased: int
    missing: tuple[str, ...] | None

    @property
    def are_complete(self) -> bool:
        """Whether each that may does."""
        return self.aliased >= self.donated


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one step does and needs on one core.

    Attributes:
        flops: Floating point operations, with the step's share of those beside
            the loop over steps; `None` if they are not known, or not those of
            some kernel.
        bytes: What is moved between the chip and its large memory, likewise;
            `None` if that is not known.
        cycles: What the compiler thinks that the loop's body takes, without
            collectives; `None` if it does not say.
        collectives: What cores send to each other in a step, by kind.
        others: The same beside the loop over steps, for the whole of it.
        copied: Bytes of its copies of arrays in the large memory; `None` if
            that is not known.
        state_copies: Those of them that are of what one step hands on to the
            next, such as variables.
        callbacks: The operations in it that call Python on the host.
        kernels: Kernels in it whose work is in no figure.
        has_unknown_loops: Whether it has loops that do not say how often they
            run, and which count as if that were once.
        memory: What the program holds.
        aliases: Which arguments give their memory to results.
        bounds: What limits it; `None` if that is not known.
        largest: The largest arrays that it makes in the large memory.
    """

    flops: float | None
    bytes: float | None
    cycles: float | None
    collectives: tuple[Collective, ...]
    others: tuple[Collective, ...]
    copied: float | None
    state_copies: tuple[Allocation, ...]
    callbacks: tuple[str, ...]
    kernels: tuple[str, ...]
    has_unknown_loops: bool
    memory: Memory
    aliases: Aliases
    bounds: Bounds | None
    largest: tuple[Allocation, ...]

    def of_any_effort(self) -> Self:
        """Those alone that are the same however much the compiler has tried."""
        return dataclasses.replace(
            self,
            bytes=None,
            cycles=None,
            copied=None,
            state_copies=(),
            bounds=None,
        )

    @property
    def sent(self) -> float:
        """Bytes that a core sends in a step, if all send as few as possible."""
        return sum(each.sent for each in self.collectives)


def of(
    compiled: jax.stages.Compiled,
    board: Board,
    steps: int,
    arguments: Mapping[str, Nest],
    has_loop: bool | None = None,
    in_graph: Callable[[str], SourceLine | None] | None = None,
) -> Figures:
    """The figures of a program.

    Args:
        steps: How many steps it has room for.
        arguments: What it takes, by kind, such as "variables" and "input":
            nests of shapes with shardings.
        has_loop: As in `loops.split`. Defaults to `None`.
        in_graph: As in `SourceLines`. Defaults to `None`.

    Example:

    >>> import jax, jax.numpy as jnp
    >>> from keras_tpu_estimator.planning import figures, topologies
    >>> board = topologies.parse("v5e:1x1")
    >>> core = jax.sharding.SingleDeviceSharding(board.machine().first)
    >>> x = jax.ShapeDtypeStruct((256, 256), "bfloat16", sharding=core)
    >>> compiled = jax.jit(jnp.matmul).lower(x, x).compile()
    >>> figures.of(compiled, board, 1, {"input": (x, x)}).flops
    33554432.0
    """
    module = hlo.parse(compiled.as_text() or "", in_graph)
    parts = loops.split(module, steps, has_loop)
    held = memory.of(compiled, module, arguments, board.chip.core.memory_left)
    step, share = parts.step, parts.share
    flops = moved = limits = None
    kernels = work.kernels(step)
    sent = collectives.of(step, board.num_cores, share)
    cycles = _cycles(step, share)
    if step:
        inside = module.computations
        moved = (
            work.bytes_moved(step, inside) * share
            # Such as inputs of all steps that are converted at once.
            + work.bytes_moved(parts.others, inside) / steps
        )
    if step and not kernels:
        flops = work.flops(step) * share + work.flops(parts.others) / steps
        total = sum(each.sent for each in sent)
        limits = bounds.of(board.chip, flops, moved or 0.0, total, cycles)
    return Figures(
        flops,
        moved,
        cycles,
        sent,
        collectives.of(parts.others, board.num_cores),
        work.bytes_copied(step) * share,
        state_copies.of(module, parts.body, steps),
        callbacks.of(step),
        kernels,
        not all(run.is_known for run in step),
        held,
        _aliases(compiled, module),
        limits,
        allocations.largest(module, step),
    )


def _cycles(runs: Iterable[Run], share: float) -> float | None:
    """Adds up the compiler's estimates, unless it has none of some part."""
    found = [
        cycles * run.times
        for run in runs
        if not run.is_fused and (cycles := run.instruction.cycles) is not None
    ]
    total = sum(found) * share
    return total if found and math.isfinite(total) else None


def _aliases(compiled: jax.stages.Compiled, module: Module) -> Aliases:
    leaves = jax.tree_util.tree_leaves_with_path(compiled.args_info)
    donated = [
        (number, jax.tree_util.keystr(path))
        for number, (path, leaf) in enumerate(leaves)
        if leaf.donated
    ]
    missing: tuple[str, ...] | None = None
    if len(module.aliased) >= len(donated):
        missing = ()
    elif module.parameters is not None and len(module.parameters) == len(leaves):
        missing = tuple(
            name for number, name in donated if number not in module.aliased
        )
    return Aliases(len(donated), len(module.aliased), missing)
