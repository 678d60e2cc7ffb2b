"""What limits a step, and how long each part of it would take at its best."""

import dataclasses

from keras_tpu_estimator.planning.chips import Chip

# If an estimate is this many times the peaks, latency limits the step.
_LATENCY = 4.0


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Seconds that a step needs at least, at the peak of a chip.

    Attributes:
        compute: For its floating point operations, in bfloat16.
        memory: For what it moves between the chip and its large memory.
        network: For what it sends to other cores.
        compiler: What the compiler thinks that it takes, without the network;
            `None` if it does not say.

    Example:

    >>> from keras_tpu_estimator.planning.bounds import Bounds
    >>> bounds = Bounds(compute=0.5, memory=2.0, network=0.1, compiler=2.5)
    >>> bounds.by, bounds.at_best
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


def of(
    chip: Chip, flops: float, moved: float, sent: float, cycles: float | None
) -> Bounds:
    """The bounds of a step on one core.

    Args:
        flops: Floating point operations of the core.
        moved: Bytes that it reads from its large memory and writes to it.
        sent: Bytes that it sends.
        cycles: Cycles by the compiler's estimate.
    """
    core = chip.core
    return Bounds(
        flops / core.flops,
        moved / core.memory_speed,
        sent / core.network_speed,
        None if cycles is None else cycles / core.clock,
    )
