"""GPUs of NVIDIA that programs are compiled for without one.

Their figures are those of NVIDIA's data sheets and architecture papers:
https://www.nvidia.com/en-us/data-center/a100, /h100 and /h200.
"""

import dataclasses
import functools
import importlib.util
import re
from typing import Any, Self

import jax
from jax.experimental import topologies

from keras_tpu_estimator.ground.base.machine import Machine
from keras_tpu_estimator.planning.chips import Chip

_KIB, _GIB = 2**10, 2**30
# What JAX takes of a GPU's memory unless it is told otherwise.
_SHARE = 0.75
# Between hosts, 400 gigabits a second for each GPU.
_BETWEEN_HOSTS = 50e9
_MOST = 8
_PLUGINS = ("xla_cuda13", "xla_cuda12")


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What the compiler has to know of a GPU that is not there.

    Attributes:
        chip: What it can do at most.
        capability: Its compute capability.
        units: Units for float32 in each of its multiprocessors.
        multiprocessors: How many of these there are.
        clock: Their cycles in a nanosecond.
        shared_memory: Bytes that each of them has, one kibibyte of which is
            not for programs.
        cache: Bytes of the second cache.
    """

    chip: Chip
    capability: tuple[int, int]
    units: int
    multiprocessors: int
    clock: float
    shared_memory: int
    cache: int

    @property
    def target(self) -> str:
        """The same as XLA reads it.

        Example:

        >>> from keras_tpu_estimator.planning.gpus import GPUS
        >>> "core_count: 132" in GPUS["h100"].target
        True
        """
        major, minor = self.capability
        values = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "threads_per_core_limit": 2048,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 2**16 - 1,
            "block_dim_limit_z": 2**16 - 1,
            "core_count": self.multiprocessors,
            "fpus_per_core": self.units,
            "clock_rate_ghz": self.clock,
            "shared_memory_per_block": 48 * _KIB,
            "shared_memory_per_block_optin": self.shared_memory - _KIB,
            "shared_memory_per_core": self.shared_memory,
            "l2_cache_size": self.cache,
            "memory_bandwidth": int(self.chip.memory_speed),
            "device_memory_size": self.chip.memory,
        }
        lines = "\n".join(f"{name}: {value}" for name, value in values.items())
        return (
            f"gpu_device_info {{\n{lines}\ncuda_compute_capability "
            f"{{ major: {major} minor: {minor} }}\n}}\n"
            'platform_name: "CUDA"\ndnn_version_info { major: 9 minor: 8 }\n'
            f'device_description_str: "{self.chip.device_kind}"\n'
        )


def _chip(
    kind: str, name: str, flops: float, cycle_flops: int, gib: int, speed: float
) -> Chip:
    return Chip(
        kind,
        name,
        cores=1,
        tensor_cores=1,
        flops=flops,
        cycle_flops=cycle_flops,
        memory=gib * _GIB,
        memory_left=int(_SHARE * gib * _GIB),
        memory_speed=speed,
        network_speed=300e9 if kind == "a100" else 450e9,
    )


def _hopper(kind: str, name: str, gib: int, speed: float) -> Gpu:
    flops = 132 * 4096
    chip = _chip(kind, name, 989e12, flops, gib, speed)
    return Gpu(chip, (9, 0), 128, 132, 1.98, 228 * _KIB, 50 * 2**20)


GPUS = {
    "a100": Gpu(
        _chip("a100", "NVIDIA A100", 312e12, 108 * 2048, 80, 2039e9),
        (8, 0),
        64,
        108,
        1.41,
        164 * _KIB,
        40 * 2**20,
    ),
    "h100": _hopper("h100", "NVIDIA H100 80GB HBM3", 80, 3350e9),
    "h200": _hopper("h200", "NVIDIA H200", 140, 4800e9),
}


@dataclasses.dataclass(frozen=True)
class GpuBoard:
    """GPUs of one kind, as many on each host.

    Attributes:
        kind: Their kind, such as "h100".
        chips_per_host: How many GPUs each of them has.

    Raises:
        ValueError: No host has as many.

    Example:

    >>> from keras_tpu_estimator.planning import gpus
    >>> board = gpus.parse("h100:2x8")
    >>> board.num_cores, board.of_one_host().name
    (16, 'h100:1x8')
    """

    kind: str
    num_hosts: int
    chips_per_host: int

    def __post_init__(self) -> None:
        if not 1 <= self.chips_per_host <= _MOST or self.num_hosts < 1:
            raise ValueError(
                f"There are no {self.name}: expected hosts with 1 to {_MOST} "
                f"GPUs each, such as '{self.kind}:2x8' for two with eight."
            )

    @property
    def chip(self) -> Chip:
        """Their kind. What leaves a host is slower."""
        chip = GPUS[self.kind].chip
        if self.num_hosts == 1:
            return chip
        return dataclasses.replace(chip, network_speed=_BETWEEN_HOSTS)

    @property
    def platform(self) -> str:
        """What JAX calls its devices."""
        return "gpu"

    @property
    def name(self) -> str:
        """Its kind, hosts and GPUs: "h100:2x8"."""
        return f"{self.kind}:{self.num_hosts}x{self.chips_per_host}"

    @property
    def num_chips(self) -> int:
        """GPUs of all hosts."""
        return self.num_hosts * self.chips_per_host

    @property
    def num_cores(self) -> int:
        """The same, each of which is a device of JAX."""
        return self.num_chips

    @property
    def compiler_options(self) -> dict[str, Any]:
        """Nothing is tried out on a GPU that is not there."""
        return {"xla_gpu_autotune_level": 0}

    @property
    def quick_options(self) -> dict[str, Any]:
        """Nothing: it takes little as it is."""
        return {}

    def of_one_host(self) -> Self:
        """The GPUs of a host by itself, as it predicts."""
        return dataclasses.replace(self, num_hosts=1)

    def machine(self) -> Machine:
        """Its devices, which need not be there.

        Raises:
            ModuleNotFoundError: The compiler for GPUs is not installed.
            RuntimeError: It is, and has not started.
        """
        return Machine(_devices(self))


def parse(name: str) -> GpuBoard | None:
    """The board of a name, if it is one of GPUs.

    Args:
        name: A kind with hosts and GPUs of each, such as "h100:2x8", or with
            the number of GPUs alone, such as "h100-16".

    Raises:
        ValueError: It is that of GPUs, but nothing has it.

    Example:

    >>> from keras_tpu_estimator.planning import gpus
    >>> gpus.parse("H100-16").name, gpus.parse("v5e:2x2")
    ('h100:2x8', None)
    """
    plain = re.sub(r"\s", "", name.lower())
    kind = next((kind for kind in GPUS if plain.startswith(kind)), None)
    if kind is None:
        return None
    found = re.fullmatch(r"[:-](?:(\d+)x)?(\d+)", plain.removeprefix(kind))
    if not found:
        raise ValueError(
            f"There are no GPUs {name!r}. Expected hosts and GPUs of each "
            f"after the kind, such as '{kind}:1x8', or '{kind}:2x8' for two "
            "hosts."
        )
    hosts, number = int(found[1] or 1), int(found[2])
    if not found[1] and number > _MOST and number % _MOST == 0:
        hosts, number = number // _MOST, _MOST
    return GpuBoard(kind, hosts, number)


@functools.cache
def _devices(board: GpuBoard) -> tuple[jax.Device, ...]:
    if not is_installed():
        raise ModuleNotFoundError(
            "To compile for a GPU takes JAX's plugin for CUDA. Expected it to "
            "be installed: pip install 'keras-tpu-estimator[cuda]', on Linux. "
            "It needs no GPU.",
            name="jax_plugins",
        )
    # Before there are any, the plugin is not known.
    Machine.here()
    shape = f"1x{board.num_hosts}x{board.chips_per_host}"
    try:
        described = topologies.get_topology_desc(
            shape,
            platform="cuda",
            topology=shape,
            target_config=GPUS[board.kind].target,
        )
    except NotImplementedError as error:
        raise RuntimeError(
            "JAX's plugin for CUDA is installed and has not started; it said "
            "why when JAX looked for devices. Where CUDA's libraries are what "
            "it lacks, it compiles without: set "
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1."
        ) from error
    return tuple(described.devices)


def is_installed() -> bool:
    """Whether JAX will find its plugin for CUDA.

    Example:

    >>> from keras_tpu_estimator.planning import gpus
    >>> isinstance(gpus.is_installed(), bool)
    True
    """
    return importlib.util.find_spec("jax_plugins") is not None and any(
        importlib.util.find_spec(f"jax_plugins.{name}") for name in _PLUGINS
    )
