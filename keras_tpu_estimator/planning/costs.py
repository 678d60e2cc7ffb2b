"""The cost of one step of a compiled loop on one core."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Self

import jax

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.common.user_code import SourceLine
from keras_tpu_estimator.planning import hlo, loops, memory, operations, work
from keras_tpu_estimator.planning.chips import Chip
from keras_tpu_estimator.planning.hlo import Instruction, Module
from keras_tpu_estimator.planning.loops import Run
from keras_tpu_estimator.planning.memory import Allocation, Memory
from keras_tpu_estimator.planning.topologies import DeviceTopology
from keras_tpu_estimator.planning.work import Collective

# Operations limit a step whose estimate is more than this many times as long as compute
# and memory one after the other.
_UNEXPLAINED = 2.0


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The minimum seconds of a step at the peak of a chip.

    Attributes:
        compute: For floating point operations, in bfloat16.
        memory: For transfers between the chip and its main memory.
        network: For transfers to other cores of the slice.
        compiler: The compiler's estimate without the network; `None` if missing.

    Example:

    >>> from keras_tpu_estimator.planning.costs import Roofline
    >>> roofline = Roofline(compute=0.5, memory=2.0, network=0.1, compiler=2.5)
    >>> roofline.by, roofline.at_best
    ('memory', 2.5)
    """

    compute: float
    memory: float
    network: float
    compiler: float | None = None

    @property
    def by(self) -> str:
        """The longest of compute, memory and network, or "operations".

        Operations limit a step if the compiler's estimate is longer than the network,
        and mostly neither compute nor memory. Small operations have such an estimate,
        and those that leave the matrix units idle.
        """
        explained = _UNEXPLAINED * (self.compute + self.memory)
        if (self.compiler or 0.0) > max(explained, self.network):
            return "operations"
        names = ("compute", "memory", "network")
        return max(names, key=lambda name: getattr(self, name))

    @property
    def at_best(self) -> float:
        """The longest of the four, which a step hardly undercuts."""
        return max(self.compute, self.memory, self.network, self.compiler or 0.0)


def roofline(
    chip: Chip, flops: float, moved: float, sent: float, cycles: float | None
) -> Roofline:
    """Returns the roofline of a step on one core, from the bytes that the core moves
    from and to its main memory and sends.
    """
    core = chip.core
    return Roofline(
        flops / core.flops,
        moved / core.memory_speed,
        sent / core.network_speed,
        None if cycles is None else cycles / core.clock,
    )


@dataclasses.dataclass(frozen=True)
class Aliases:
    """The arguments whose memory results reuse.

    Attributes:
        donated: The number of donated arguments.
        aliased: The number of arguments whose memory is reused.
        missing: The names of donated arguments whose memory is not reused; `None` if
            XLA has removed arguments, so that they cannot be matched.
    """

    donated: int
    aliased: int
    missing: tuple[str, ...] | None

    @property
    def are_complete(self) -> bool:
        """Whether results reuse the memory of every donated argument."""
        return self.aliased >= self.donated


@dataclasses.dataclass(frozen=True)
class StepCost:
    """The cost of one step on one core.

    Attributes:
        flops: Floating point operations, including the step's share of those outside
            the loop over steps; `None` if unknown, or if the step runs a kernel whose
            operations are unknown.
        bytes: Bytes moved between the chip and its main memory, with the same share;
            `None` if unknown.
        cycles: The compiler's estimate for the body of the loop, without collectives;
            `None` if the compiler has made no estimate.
        collectives: The collectives of a step, by kind.
        collectives_outside: The collectives outside the loop over steps, for all steps.
        copied: Bytes of copies in the main memory; `None` if unknown.
        state_copies: The copies among them of state that one step passes to the next,
            such as variables.
        callbacks: The operations that call Python on the host.
        attentions: The attentions that a kernel computes without storing scores.
        kernels: The kernels whose cost is unknown.
        has_unknown_loops: Whether some loops have an unknown number of rounds; one
            round of each is counted.
        memory: The memory of the program.
        aliases: The arguments whose memory results reuse.
        roofline: The minimum time of a step; `None` if unknown.
        largest: The largest arrays that a step makes in the main memory.
    """

    flops: float | None
    bytes: float | None
    cycles: float | None
    collectives: tuple[Collective, ...]
    collectives_outside: tuple[Collective, ...]
    copied: float | None
    state_copies: tuple[Allocation, ...]
    callbacks: tuple[str, ...]
    attentions: float
    kernels: tuple[str, ...]
    has_unknown_loops: bool
    memory: Memory
    aliases: Aliases
    roofline: Roofline | None
    largest: tuple[Allocation, ...]

    def of_any_effort(self) -> Self:
        """Returns only the numbers that do not depend on the optimization level."""
        return dataclasses.replace(
            self,
            bytes=None,
            cycles=None,
            copied=None,
            state_copies=(),
            roofline=None,
        )

    @property
    def sent(self) -> float:
        """The bytes that a core sends in a step if all cores send as little as
        possible.
        """
        return sum(collective.sent for collective in self.collectives)


def step_cost(
    compiled: jax.stages.Compiled,
    topology: DeviceTopology,
    steps: int,
    arguments: Mapping[str, PyTree],
    has_loop: bool | None = None,
    in_graph: Callable[[str], SourceLine | None] | None = None,
) -> StepCost:
    """Returns the cost of one of a program's `steps` steps.

    Args:
        arguments: Pytrees of shapes with shardings by kind, such as "variables" and
            "input".
        has_loop: As in `loops.split`.
        in_graph: As in `SourceLines`.
    """
    module = hlo.parse(compiled.as_text() or "", in_graph)
    parts = loops.split(module, steps, has_loop)
    program_memory = memory.from_compiled(
        compiled, module, arguments, topology.chip.core.memory_left
    )
    step, share = parts.step, parts.share
    flops = moved = limits = None
    kernels = work.kernels(step)
    sent = work.collectives(step, topology.num_cores, share)
    cycles = _cycles(step, share)
    if step:
        inside = module.computations
        moved = (
            work.bytes_moved(step, inside) * share
            # For example, the inputs of all steps are converted at once.
            + work.bytes_moved(parts.outside, inside) / steps
        )
    if step and not kernels:
        flops = work.flops(step) * share + work.flops(parts.outside) / steps
        # The speed of the network between slices depends on their hosts.
        total = sum(amount.sent for amount in sent if amount.kind != work.TO_SLICE)
        limits = roofline(topology.chip, flops, moved or 0.0, total, cycles)
    return StepCost(
        flops,
        moved,
        cycles,
        sent,
        work.collectives(parts.outside, topology.num_cores),
        work.bytes_copied(step) * share,
        memory.state_copies(module, parts.body, steps),
        callbacks(step),
        work.attentions(step) * share,
        kernels,
        not all(run.is_known for run in step),
        program_memory,
        _aliases(compiled, module),
        limits,
        memory.largest(module, step),
    )


def _cycles(runs: Iterable[Run], share: float) -> float | None:
    """Adds the compiler's estimates, or returns `None` if one is missing."""
    estimates = [
        cycles * run.times
        for run in runs
        if not run.is_fused and (cycles := run.instruction.cycles) is not None
    ]
    total = sum(estimates) * share
    return total if estimates and math.isfinite(total) else None


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


def callbacks(runs: Iterable[Run]) -> tuple[str, ...]:
    """Returns the operations that call Python on the host, each once."""
    return tuple(
        dict.fromkeys(
            str(operations.from_instruction(run.instruction))
            for run in runs
            if _is_callback(run.instruction)
        )
    )


def _is_callback(instruction: Instruction) -> bool:
    # A TPU exchanges tensors with its host; other devices call a library.
    if instruction.opcode in ("send", "recv"):
        is_to_host = instruction.attribute("is_host_transfer") == "true"
        return is_to_host and not instruction.is_between_slices
    return "python" in instruction.target and instruction.target.endswith("callback")
