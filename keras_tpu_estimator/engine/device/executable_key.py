"""What an executable is for: a program, devices, and who has compiled it."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import platform
import shlex
from collections.abc import Sequence
from importlib import metadata
from typing import Self

import jax

_PACKAGES = ("jax", "jaxlib")
# Elsewhere than on a TPU, whose client says it, JAX has the compiler in these.
_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
# What compilers are told beside the program.
_SETTINGS = (
    "jax_compiler_enable_remat_pass",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_memory_fitting_level",
    "jax_optimization_level",
)
_INSTRUCTIONS = ("flags", "Features")
_HASHED = ("program", "topology")
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
# Of XLA's flags, those that leave every program as it is, or all but a CPU's.
_OF_NONE = ("--xla_force_host_platform_device_count", "--xla_dump_")
_OF_CPUS = ("--xla_cpu_",)


@dataclasses.dataclass(frozen=True)
class ExecutableKey:
    """What an executable is for.

    Attributes:
        name: What its file is called, for whoever looks for it.
        program: The SHA-256 of the lowered program.
        devices: The devices, as a text: how many of which kind, on how many
            hosts.
        topology: The SHA-256 of where they are, and in which order.
        compiler: Versions of JAX and of its compiler, as a text.
        settings: What that was told beside the program, as a text.

    Example:

    >>> import dataclasses, jax
    >>> lowered = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((), "f4"))
    >>> key = ExecutableKey.of("add", lowered, jax.devices()[:1])
    >>> key.unlike(dataclasses.replace(key, devices="2 of 2 v9 on 1 host"))
    ['devices (2 of 2 v9 on 1 host)']
    """

    name: str
    program: str
    devices: str
    topology: str
    compiler: str
    settings: str

    @classmethod
    def of(
        cls,
        name: str,
        lowered: jax.stages.Lowered,
        devices: Sequence[jax.Device],
    ) -> Self:
        """The key of a program.

        Args:
            name: What to call it.
            lowered: The program.
            devices: Those that are to run it, in their order. They need not
                be there.
        """
        board = devices[0].client.devices()
        hosts = len({device.process_index for device in devices})
        return cls(
            name,
            _digest(lowered.as_text()),
            f"{len(devices)} of {len(board)} {devices[0].device_kind} on "
            f"{hosts} host{'' if hosts == 1 else 's'}",
            _digest([[*map(_place, each)] for each in (devices, board)]),
            _compiler(devices[0]),
            _settings(devices[0]),
        )

    @property
    def digest(self) -> str:
        """Another one for each key."""
        return _digest(dataclasses.asdict(self))[:32]

    def unlike(self, other: Self) -> list[str]:
        """What another key has in place of these: "program", "compiler (...)".

        Args:
            other: The other key.
        """
        return [
            name if name in _HASHED else f"{name} ({value})"
            for name, value in dataclasses.asdict(other).items()
            if getattr(self, name) != value
        ]


def _digest(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return hashlib.sha256(text.encode()).hexdigest()


def _place(device: jax.Device) -> list[object]:
    return [
        device.id,
        device.process_index,
        device.device_kind,
        [*getattr(device, "coords", ())],
        getattr(device, "core_on_chip", 0),
    ]


def _compiler(device: jax.Device) -> str:
    versions = {name: metadata.version(name) for name in _PACKAGES}
    if device.platform == "tpu":
        # "Built on ...", which is the same with a TPU and without.
        versions["libtpu"] = device.client.platform_version.splitlines()[-1]
    elif device.platform == "cpu":
        versions["processor"] = _processor()
    else:
        for name in _PLUGINS:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
    return ", ".join(f"{name} {version}" for name, version in versions.items())


@functools.cache
def _processor() -> str:
    """Returns a name of the processor that includes its instructions."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line.partition(":") for line in file]
    except OSError:  # Not on Linux.
        return f"{platform.machine()} {platform.processor()}"
    # The names that Linux has on x86 and on ARM.
    found = {n.strip(): v for n, _, v in lines if n.strip() in _INSTRUCTIONS}
    return f"{platform.machine()} {_digest(sorted(found.items()))[:8]}"


def _settings(device: jax.Device) -> str:
    is_cpu = device.platform == "cpu"
    skipped = _OF_NONE if is_cpu else _OF_NONE + _OF_CPUS
    values = jax.config.values
    flags = [f"{n}={values[n]}" for n in _SETTINGS if n in values]
    for name in _VARIABLES:
        flags += [
            flag
            for flag in shlex.split(os.environ.get(name, ""))
            if not flag.startswith(skipped)
        ]
    return " ".join(flags)
