"""The published peak performance of each kind of TPU chip.

Google Cloud documents the compute, memory and bandwidth of a chip:
https://cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e and /tpu7x. These pages and "How
to Scale Your Model" (https://jax-ml.github.io/scaling-book/tpus) agree. The clock
follows from the operations of the matrix units in one cycle. The memory that a chip
leaves to programs is undocumented; XLA's compiler reports it when a program does not
fit, and tests compare it.
"""

import dataclasses

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One kind of chip at its peak. JAX calls a core a device.

    Attributes:
        kind: Its name, such as "v5e".
        device_kind: The name in JAX, such as "TPU v5 lite".
        cores: The number of cores of a chip. Two that work as one (megacore) count as
            one.
        tensor_cores: The number of TensorCores that Cloud TPU counts in names such as
            "v4-8"; 1 if these names count chips.
        flops: Floating point operations per second, in bfloat16.
        cycle_flops: Floating point operations in each cycle of its clock.
        memory: Bytes of high-bandwidth memory (HBM).
        memory_left: Bytes of it that programs can use.
        memory_speed: Bytes per second that it reads or writes.
        network_speed: Bytes per second that it sends to other chips over all of its
            links, while it receives as many.

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
                raise ValueError(f"`{field.name}` must be positive. Received: {value}.")

    @property
    def clock(self) -> float:
        """The cycles per second."""
        return self.flops / self.cycle_flops

    @property
    def core(self) -> "Chip":
        """The peak of one core."""
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


# Matrix units have 128 x 128 elements, or 256 x 256 since v6e, and each element
# multiplies and adds. The pages give the speed of links for both directions together.
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
