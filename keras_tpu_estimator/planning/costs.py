"""The figures of a compiled loop, for each core and step."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Self

import jax

from keras_tpu_estimator.ground.base.source_line import SourceLine
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.planning import hlo, loops, memory, operations, work
from keras_tpu_estimator.planning.chips import Chip
from keras_tpu_estimator.planning.hlo import Instruction, Module
from keras_tpu_estimator.planning.loops import Run
from keras_tpu_estimator.planning.memory import Allocation, Memory
from keras_tpu_estimator.planning.topologies import DeviceTopology
from keras_tpu_estimator.planning.work import Collective

# If an estimate is this many times the peaks, latency limits the step.
_LATENCY = 4.0


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds that a step needs at least, at the peak of a chip.

    Attributes:
        compute: For its floating point operations, in bfloat16.
        memory: For what it moves between the chip and its large memory.
        network: For what it sends to other cores.
        compiler: What the compiler thinks that it takes, without the network;
            `None` if it does not say.

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
        """The one of the first three that takes longest, or "latency".

        Latency limits a step if the compiler's estimate is several times as
        long as each of the three. Many small operations take that time.
        """
        names = ("compute", "memory", "network")
        longest = max(names, key=lambda name: getattr(self, name))
        peak = getattr(self, longest)
        if self.compiler is not None and self.compiler > _LATENCY * peak:
            return "latency"
        return longest

    @property
    def at_best(self) -> float:
        """The longest of the four: a step hardly takes less."""
        return max(self.compute, self.memory, self.network, self.compiler or 0.0)


def roofline(
    chip: Chip, flops: float, moved: float, sent: float, cycles: float | None
) -> Roofline:
    """The bounds of a step on one core.

    Args:
        flops: Floating point operations of the core.
        moved: Bytes that it reads from its large memory and writes to it.
        sent: Bytes that it sends.
        cycles: Cycles by the compiler's estimate.
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
class StepCost:
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
        roofline: What limits it; `None` if that is not known.
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
    roofline: Roofline | None
    largest: tuple[Allocation, ...]

    def of_any_effort(self) -> Self:
        """Those alone that are the same however much the compiler has tried."""
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
        """Bytes that a core sends in a step, if all send as few as possible."""
        return sum(each.sent for each in self.collectives)


def step_cost(
    compiled: jax.stages.Compiled,
    topology: DeviceTopology,
    steps: int,
    arguments: Mapping[str, Nest],
    has_loop: bool | None = None,
    in_graph: Callable[[str], SourceLine | None] | None = None,
) -> StepCost:
    """The figures of a program.

    Args:
        steps: How many steps it has room for.
        arguments: What it takes, by kind, such as "variables" and "input":
            nests of shapes with shardings.
        has_loop: As in `loops.split`. Defaults to `None`.
        in_graph: As in `SourceLines`. Defaults to `None`.

    Example:

    >>> import jax, jax.numpy as jnp
    >>> from keras_tpu_estimator.planning import costs, topologies
    >>> topology = topologies.parse("v5e:1x1")
    >>> core = jax.sharding.SingleDeviceSharding(topology.machine().first)
    >>> x = jax.ShapeDtypeStruct((256, 256), "bfloat16", sharding=core)
    >>> compiled = jax.jit(jnp.matmul).lower(x, x).compile()
    >>> costs.step_cost(compiled, topology, 1, {"input": (x, x)}).flops
    33554432.0
    """
    module = hlo.parse(compiled.as_text() or "", in_graph)
    parts = loops.split(module, steps, has_loop)
    held = memory.of(compiled, module, arguments, topology.chip.core.memory_left)
    step, share = parts.step, parts.share
    flops = moved = limits = None
    kernels = work.kernels(step)
    sent = work.collectives(step, topology.num_cores, share)
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
        limits = roofline(topology.chip, flops, moved or 0.0, total, cycles)
    return StepCost(
        flops,
        moved,
        cycles,
        sent,
        work.collectives(parts.others, topology.num_cores),
        work.bytes_copied(step) * share,
        memory.state_copies(module, parts.body, steps),
        callbacks(step),
        kernels,
        not all(run.is_known for run in step),
        held,
        _aliases(compiled, module),
        limits,
        memory.largest(module, step),
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


def callbacks(runs: Iterable[Run]) -> tuple[str, ...]:
    """The operations that call it, by name, each once.

    Args:
        runs: What is run.

    Example:

    >>> from keras_tpu_estimator.planning import callbacks, hlo, loops
    >>> module = hlo.parse('''ENTRY %main (x: f32[2]) -> token[] {
    ...   %x = f32[2]{0} parameter(0)
    ...   %t = token[] after-all()
    ...   ROOT %s = (f32[2], u32[], token[]) send(%x, %t), \
is_host_transfer=true, metadata={op_name="jit(f)/dense/debug_print"}
    ... }''')
    >>> callbacks.callbacks(loops.split(module, 1).step)
    ('debug_print of dense',)
    """
    return tuple(
        dict.fromkeys(
            str(operations.of(run.instruction))
            for run in runs
            if _is_callback(run.instruction)
        )
    )


def _is_callback(each: Instruction) -> bool:
    # A TPU exchanges tensors with its host; other devices call a library.
    if each.opcode in ("send", "recv"):
        return each.attribute("is_host_transfer") == "true"
    return "python" in each.target and each.target.endswith("callback")
