"""What each kind of TPU chip can do at most, as published.

Google Cloud's pages say what a chip computes, holds and moves:
https://cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e and /tpu7x. They and
"How to Scale Your Model" (https://jax-ml.github.io/scaling-book/tpus) agree.
The clock follows from what the matrix units do in one of its cycles. What of
its memory a chip leaves to programs is in no page; XLA's compiler says it
where a program does not fit, and tests ask it.
"""

import dataclasses

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One kind of chip at its peak. A core is what JAX calls a device.

    Attributes:
        kind: Its name, such as "v5e".
        device_kind: What JAX calls it, such as "TPU v5 lite".
        cores: Cores of a chip. Two that work as one (megacore) are one.
        tensor_cores: Parts of a chip that Cloud TPU counts in names such as
            "v4-8"; 1 where these names count chips.
        flops: Floating point operations a second, in bfloat16.
        cycle_flops: As many in each cycle of its clock.
        memory: Bytes of high-bandwidth memory (HBM).
        memory_left: Bytes of it that programs can have.
        memory_speed: Bytes a second that it reads or writes.
        network_speed: Bytes a second that it sends to other chips, over all
            of its links, while it receives as many.

    Example:

    >>> from keras_tpu_estimator.planning.chips import CHIPS
    >>> CHIPS["v5e"].memory // 2**30
    16
    """

    kind: str
    device_kind: str
    cores: int
    tensor_cores: int
    flops: float
    cycle_flops: int
    memory: int
    memory_left: int
    memory_speed: float
    network_speed: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) and value <= 0:
                raise ValueError(
                    f"`{field.name}` should be positive. Received: {value}."
                )

    @property
    def clock(self) -> float:
        """Cycles a second."""
        return self.flops / self.cycle_flops

    @property
    def core(self) -> "Chip":
        """What one of its cores can do."""
        return dataclasses.replace(
            self,
            cores=1,
            tensor_cores=max(1, self.tensor_cores // self.cores),
            flops=self.flops / self.cores,
            cycle_flops=self.cycle_flops // self.cores,
            memory=self.memory // self.cores,
            memory_left=self.memory_left // self.cores,
            memory_speed=self.memory_speed / self.cores,
            network_speed=self.network_speed / self.cores,
        )


# Matrix units of 128 x 128, or 256 x 256 since v6e, each of which multiplies
# and adds. Of the links, the pages give both directions together.
CHIPS = {
    chip.kind: chip
    for chip in (
        Chip(
            "v4",
            "TPU v4",
            cores=1,
            tensor_cores=2,
            flops=275e12,
            cycle_flops=2 * 4 * 2 * 128**2,
            memory=32 * _GIB,
            memory_left=30 * _GIB + 3 * _GIB // 4,
            memory_speed=1200e9,
            network_speed=300e9,
        ),
        Chip(
            "v5e",
            "TPU v5 lite",
            cores=1,
            tensor_cores=1,
            flops=197e12,
            cycle_flops=4 * 2 * 128**2,
            memory=16 * _GIB,
            memory_left=15 * _GIB + 3 * _GIB // 4,
            memory_speed=819e9,
            network_speed=200e9,
        ),
        Chip(
            "v5p",
            "TPU v5",
            cores=1,
            tensor_cores=2,
            flops=459e12,
            cycle_flops=2 * 4 * 2 * 128**2,
            memory=96 * _GIB,
            memory_left=int(95.74 * _GIB),
            memory_speed=2765e9,
            network_speed=600e9,
        ),
        Chip(
            "v6e",
            "TPU v6 lite",
            cores=1,
            tensor_cores=1,
            flops=918e12,
            cycle_flops=4 * 2 * 256**2,
            memory=32 * _GIB,
            memory_left=31 * _GIB + _GIB // 4,
            memory_speed=1638e9,
            network_speed=400e9,
        ),
        Chip(
            "tpu7x",
            "TPU7x",
            cores=2,
            tensor_cores=2,
            flops=2307e12,
            cycle_flops=2 * 4 * 2 * 256**2,
            memory=192 * _GIB,
            memory_left=2 * (94 * _GIB + 3 * _GIB // 4),
            memory_speed=7380e9,
            network_speed=600e9,
        ),
    )
}
