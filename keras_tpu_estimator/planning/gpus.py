"""NVIDIA GPUs that programs are compiled for without a GPU.

The numbers come from NVIDIA's data sheets and architecture papers:
https://www.nvidia.com/en-us/data-center/a100, /h100 and /h200.
"""

import dataclasses
import functools
import importlib.util
import re
from typing import Any, Self

import jax
from jax.experimental import topologies

from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.planning.chips import Chip

_KIB, _GIB = 2**10, 2**30
# The share of a GPU's memory that JAX uses by default.
_SHARE = 0.75
# Between hosts, each GPU sends 400 gigabits per second.
_BETWEEN_HOSTS = 50e9
_MOST = 8
_PLUGINS = ("xla_cuda13", "xla_cuda12")


@dataclasses.dataclass(frozen=True)
class Gpu:
    """The properties of a GPU that the compiler needs.

    Attributes:
        chip: Its peak performance.
        capability: Its compute capability.
        units: The number of units for float32 in each multiprocessor.
        multiprocessors: The number of multiprocessors.
        clock: Their cycles per nanosecond.
        shared_memory: Bytes of shared memory of each multiprocessor, including one
            kibibyte that programs cannot use.
        cache: Bytes of the second-level cache.
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
        """The same properties in XLA's text format."""
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
class GpuTopology:
    """Hosts with the same number of GPUs of one kind.

    Attributes:
        kind: Their kind, such as "h100".
        chips_per_host: The number of GPUs of each host.
    """

    kind: str
    num_hosts: int
    chips_per_host: int

    def __post_init__(self) -> None:
        if not 1 <= self.chips_per_host <= _MOST or self.num_hosts < 1:
            raise ValueError(
                f"Hosts must have 1 to {_MOST} GPUs each. Received: {self.name}. Pass "
                f"a name such as '{self.kind}:2x8' for two hosts with eight each."
            )

    @property
    def chip(self) -> Chip:
        """The kind of the GPUs; with several hosts, the network is slower."""
        chip = GPUS[self.kind].chip
        if self.num_hosts == 1:
            return chip
        return dataclasses.replace(chip, network_speed=_BETWEEN_HOSTS)

    @property
    def platform(self) -> str:
        """JAX's name for the kind of devices."""
        return "gpu"

    @property
    def name(self) -> str:
        """The kind, hosts and GPUs: "h100:2x8"."""
        return f"{self.kind}:{self.num_hosts}x{self.chips_per_host}"

    @property
    def num_chips(self) -> int:
        """The number of GPUs of all hosts."""
        return self.num_hosts * self.chips_per_host

    @property
    def num_cores(self) -> int:
        """The number of JAX devices, one for each GPU."""
        return self.num_chips

    @property
    def compiler_options(self) -> dict[str, Any]:
        """The options of the compiler, without autotuning, which needs a GPU."""
        return {"xla_gpu_autotune_level": 0}

    @property
    def quick_options(self) -> dict[str, Any]:
        """The additional options of a quick plan: none, without autotuning."""
        return {}

    def of_one_host(self) -> Self:
        """Returns the GPUs of one host, which predicts separately."""
        return dataclasses.replace(self, num_hosts=1)

    def machine(self) -> Machine:
        """Returns its devices, which need not exist, or raises `ModuleNotFoundError` if
        the compiler for GPUs is not installed and `RuntimeError` if it has not started.
        """
        return Machine(_devices(self))


def parse(name: str) -> GpuTopology | None:
    """Returns the topology of a name such as "h100:2x8" (hosts, and GPUs per host) or
    "h100-16" (all GPUs), or `None` if the name does not begin with a GPU; raises
    `ValueError` if only the rest is invalid.
    """
    plain = re.sub(r"\s", "", name.lower())
    kind = next((kind for kind in GPUS if plain.startswith(kind)), None)
    if kind is None:
        return None
    size = re.fullmatch(r"[:-](?:(\d+)x)?(\d+)", plain.removeprefix(kind))
    if not size:
        raise ValueError(
            f"The number of hosts and of GPUs per host must follow the kind. "
            f"Received: {name!r}. Pass a name such as '{kind}:1x8', or "
            f"'{kind}:2x8' for two hosts."
        )
    hosts, number = int(size[1] or 1), int(size[2])
    if not size[1] and number > _MOST and number % _MOST == 0:
        hosts, number = number // _MOST, _MOST
    return GpuTopology(kind, hosts, number)


@functools.cache
def _devices(topology: GpuTopology) -> tuple[jax.Device, ...]:
    if not is_installed():
        raise ModuleNotFoundError(
            "Compiling for a GPU needs JAX's plugin for CUDA. Install it on "
            "Linux: pip install 'keras-tpu-estimator[cuda]'. It needs no GPU.",
            name="jax_plugins",
        )
    # JAX registers the plugin when it first looks for devices.
    Machine.from_jax()
    shape = f"1x{topology.num_hosts}x{topology.chips_per_host}"
    try:
        described = topologies.get_topology_desc(
            shape,
            platform="cuda",
            topology=shape,
            target_config=GPUS[topology.kind].target,
        )
    except NotImplementedError as error:
        raise RuntimeError(
            "JAX's plugin for CUDA is installed but has not started. It logged "
            "the reason when JAX looked for devices. If only CUDA's libraries "
            "are missing, set JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1: compiling does "
            "not need them."
        ) from error
    return tuple(described.devices)


def is_installed() -> bool:
    """Returns whether JAX will find its plugin for CUDA."""
    return importlib.util.find_spec("jax_plugins") is not None and any(
        importlib.util.find_spec(f"jax_plugins.{name}") for name in _PLUGINS
    )
