"""TPU topologies by the names that users know.

Cloud TPU names a topology by a kind and a shape ("v5e", "4x4"), or by a kind and a
number of chips or cores ("v5litepod-16", "v4-32"). Its pages list the shapes:
https://cloud.google.com/tpu/docs/v5e and those of the other kinds.
"""

import dataclasses
import functools
import importlib.util
import itertools
import math
import os
import re
from collections.abc import Sequence
from typing import Any, Protocol, Self

import jax
from jax.experimental import topologies

from keras_tpu_estimator.base.common.field_checks import did_you_mean
from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.planning import gpus
from keras_tpu_estimator.planning.chips import CHIPS, Chip

# The names of the kinds in common use, in JAX and on Google Cloud. For some kinds,
# "-8" means cores.
_KINDS = {
    "v4": "v4",
    "v4p": "v4",
    "v5e": "v5e",
    "v5lite": "v5e",
    "v5litepod": "v5e",
    "v5p": "v5p",
    "v5": "v5p",
    "v6e": "v6e",
    "v6lite": "v6e",
    "trillium": "v6e",
    "tpu7x": "tpu7x",
    "7x": "tpu7x",
    "v7x": "tpu7x",
    "ironwood": "tpu7x",
}
_FLAT_SHAPES = (
    (1, 1),
    (2, 2),
    (2, 4),
    (4, 4),
    (4, 8),
    (8, 8),
    (8, 16),
    (16, 16),
)
# Larger shapes consist of cubes of 4 x 4 x 4, up to the maximum of a job.
_PARTS_OF_A_CUBE = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
_MOST_CHIPS = {"v4": 4096, "v5p": 6144, "tpu7x": 9216}
_EXPECTED = (
    f"Pass one of the kinds {', '.join(CHIPS)} with a shape or a size, "
    "such as 'v5e:4x4', 'v5litepod-16' or 'v4-32'."
)
# The number of slices before the name of one.
_SLICES = re.compile(r"\s*(\d+)\s*x\s*(?=[a-z]|7x)", re.IGNORECASE)
_MOST_SLICES = 256
_HOST = (2, 2)
# A topology of one of these shapes is a single host.
_LONE_HOSTS = ((1, 1), (2, 4))


# XLA's optimization level "O0".
_LOWEST_LEVEL = 9


class DeviceTopology(Protocol):
    """Connected chips of one kind, and their hosts."""

    @property
    def chip(self) -> Chip:
        """The kind of the chips."""

    @property
    def platform(self) -> str:
        """JAX's name for the kind of devices: "tpu" or "gpu"."""

    @property
    def name(self) -> str:
        """The canonical name."""

    @property
    def num_chips(self) -> int:
        """The number of chips of all hosts."""

    @property
    def num_cores(self) -> int:
        """The number of cores of all chips, which are JAX's devices."""

    @property
    def num_hosts(self) -> int:
        """The number of hosts, each of which is a process."""

    @property
    def chips_per_host(self) -> int:
        """The number of chips of one host."""

    @property
    def compiler_options(self) -> dict[str, Any]:
        """The options of the compiler."""

    @property
    def quick_options(self) -> dict[str, Any]:
        """The additional options of a quick plan."""

    def of_one_host(self) -> "DeviceTopology":
        """Returns the chips of one host, which predicts separately."""

    def machine(self) -> Machine:
        """Returns its devices, which need not exist."""


@functools.cache
def libtpu_devices(topology: str, **options: object) -> tuple[jax.Device, ...]:
    """Returns the devices of a topology, the same in each call, which compile programs
    but cannot run them.
    """
    if not is_libtpu_installed():
        raise ModuleNotFoundError(
            "Compiling for a TPU needs libtpu, which contains its compiler. "
            "Install it on x86-64 Linux: pip install "
            "'keras-tpu-estimator[tpu]'. It needs no TPU.",
            name="libtpu",
        )
    try:
        described = topologies.get_topology_desc(topology, platform="tpu", **options)
    except jax.errors.JaxRuntimeError as error:
        if "INVALID_ARGUMENT" not in str(error):
            raise
        raise ValueError(
            f"The installed libtpu does not support the topology {topology!r} with "
            f"{options}. Choose another topology, or update libtpu and JAX."
        ) from error
    return tuple(described.devices)


def is_libtpu_installed() -> bool:
    """Returns whether JAX will find libtpu."""
    return (
        "TPU_LIBRARY_PATH" in os.environ
        or importlib.util.find_spec("libtpu") is not None
    )


def _least_effort() -> dict[str, Any]:
    """Returns the options of a compilation that optimizes as little as possible."""
    if "jax_exec_time_optimization_effort" in jax.config.values:  # To 0.10.
        return {"exec_time_optimization_effort": -1.0}
    return {"optimization_level": _LOWEST_LEVEL}


@dataclasses.dataclass(frozen=True)
class TpuTopology:
    """Connected TPU chips of one kind, and their hosts.

    Attributes:
        shape: The number of chips of a slice along each axis.
        slices: The number of slices, which a slower network connects. Defaults to 1.
    """

    chip: Chip
    shape: tuple[int, ...]
    slices: int = 1

    def __post_init__(self) -> None:
        if self.shape not in shapes(self.chip.kind):
            raise ValueError(
                f"No {self.chip.kind} has {_written(self.shape)} chips. "
                f"{_expected(self.chip.kind)}"
            )
        if not 1 <= self.slices <= _MOST_SLICES:
            raise ValueError(
                f"A job must have 1 to {_MOST_SLICES} slices. Received: {self.slices}. "
                "Pass a number such as 2."
            )

    @property
    def platform(self) -> str:
        """JAX's name for the kind of devices."""
        return "tpu"

    @property
    def name(self) -> str:
        """The canonical name, such as "v5e:4x4", or "2xv5e:4x4" for two slices."""
        slices = f"{self.slices}x" if self.slices > 1 else ""
        return f"{slices}{self.slice_name}"

    @property
    def slice_name(self) -> str:
        """The canonical name of one slice."""
        return f"{self.chip.kind}:{_written(self.shape)}"

    @property
    def num_chips(self) -> int:
        """The number of chips of all hosts."""
        return math.prod(self.shape) * self.slices

    @property
    def num_cores(self) -> int:
        """The number of cores of all chips, which are JAX's devices."""
        return self.num_chips * self.chip.cores

    @property
    def host_shape(self) -> tuple[int, ...]:
        """The number of chips of one host along each axis."""
        if self.shape in _LONE_HOSTS:
            return self.shape
        return (*_HOST, 1)[: len(self.shape)]

    @property
    def chips_per_host(self) -> int:
        """The number of chips of one host."""
        return math.prod(self.host_shape)

    @property
    def num_hosts(self) -> int:
        """The number of hosts, each of which is a process."""
        return self.num_chips // self.chips_per_host

    @property
    def options(self) -> dict[str, object]:
        """The options of `get_topology_desc` beside the name."""
        bounds = (*self.host_shape, 1)[:3]
        options: dict[str, object] = {"chips_per_host_bounds": bounds}
        if self.chip.cores < self.chip.tensor_cores:
            options["chip_config_name"] = "megacore"
        if self.slices > 1:
            options["num_slices"] = self.slices
        return options

    @property
    def compiler_options(self) -> dict[str, Any]:
        """The options of the compiler: none beside its defaults."""
        return {}

    @property
    def quick_options(self) -> dict[str, Any]:
        """The additional options of a quick plan, which reduce the optimization."""
        return _least_effort()

    def of_one_host(self) -> Self:
        """Returns the chips of one host, which predicts separately."""
        return dataclasses.replace(self, shape=self.host_shape, slices=1)

    def machine(self) -> Machine:
        """Returns its devices, which need not exist, or raises `ModuleNotFoundError` if
        the TPU compiler is not installed.
        """
        return Machine(libtpu_devices(self.slice_name, **self.options))


def parse(name: str) -> DeviceTopology:
    """Returns the topology of a name, in any case and with any separators; raises
    `ValueError` if none has that name.

    Args:
        name: A kind and a shape, such as "v5e:4x4" or "v4:2x2x1", or an accelerator
            type of Cloud TPU, such as "v5litepod-16" or "v4-32", or GPUs, such as
            "h100:1x8". A number and "x" before the kind of TPU is that of slices, as in
            "2xv5e:16x16".
    """
    if not isinstance(name, str):
        raise TypeError(
            f"`topology` must be a string. Received: {shown(name)}. Pass a name "
            "such as 'v5e:4x4'."
        )
    slices = _SLICES.match(name)
    slice_name = name[slices.end() :] if slices else name
    of_gpus = gpus.parse(slice_name)
    if of_gpus is not None:
        if slices:
            raise ValueError(
                f"Only TPUs have slices. Received: {name!r}. Pass the number of hosts "
                "and of their GPUs, as in 'h100:2x8'."
            )
        return of_gpus
    kind, size = _split(slice_name)
    topology = _by_name(kind).get(size) if kind else None
    if topology is None:
        raise ValueError(_unknown(name, kind, size))
    return dataclasses.replace(topology, slices=int(slices[1])) if slices else topology


def parse_each(names: Sequence[str]) -> tuple[DeviceTopology, ...]:
    """Returns the topologies of a nonempty list of names."""
    if not isinstance(names, Sequence):
        parse(names)
    if not names:
        raise ValueError(
            "`topology` must be a name or a list of names. Received: an empty list. "
            "Pass a name such as 'v5e:4x4'."
        )
    return tuple(map(parse, names))


@functools.cache
def shapes(kind: str) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of slices of a kind, such as "v4", smallest first."""
    if kind not in _MOST_CHIPS:
        return _FLAT_SHAPES
    most = _MOST_CHIPS[kind]
    sides = range(4, most // 16 + 1, 4)
    cubes = (
        (a, b, c)
        for a, b in itertools.combinations_with_replacement(
            range(4, math.isqrt(most // 4) + 1, 4), 2
        )
        for c in sides
        if b <= c <= most // (a * b)
    )
    return _PARTS_OF_A_CUBE + tuple(
        sorted(cubes, key=lambda shape: (math.prod(shape), sum(shape)))
    )


@functools.cache
def _by_name(kind: str) -> dict[str, TpuTopology]:
    """Returns the topologies of a kind, by shape ("4x4") and by size ("16")."""
    chip, topologies = CHIPS[kind], {}
    for shape in shapes(kind):
        topology = TpuTopology(chip, shape)
        topologies[_written(shape)] = topology
        # If several shapes have the same size, the first is most like a cube.
        topologies.setdefault(str(topology.num_chips * chip.tensor_cores), topology)
    return topologies


def _split(name: str) -> tuple[str, str]:
    """Splits a name into its kind, or "", and its size."""
    plain = re.sub(r"[\s_]", "", name.lower())
    if not plain.startswith("tpu7x"):
        plain = plain.removeprefix("tpu").lstrip("-:")
    # The longest names come first, because "v5" is another kind than "v5litepod".
    for written in sorted(_KINDS, key=len, reverse=True):
        if plain.startswith(written):
            return _KINDS[written], plain.removeprefix(written).lstrip("-:")
    return "", plain


def _unknown(name: str, kind: str, size: str) -> str:
    meant = _nearest(kind, size) or did_you_mean(
        name.strip().lower(),
        (
            _type(topology)
            for other_kind in CHIPS
            for topology in _by_name(other_kind).values()
        ),
    )
    expected = _expected(kind) if kind else _EXPECTED
    return f"Unknown TPU topology {name!r}.{meant} {expected}"


def _nearest(kind: str, size: str) -> str:
    """Returns a question that suggests a topology of about the same size, or ""."""
    if not kind or not re.fullmatch(r"\d+(x\d+)*", size):
        return ""
    sides = [int(side) for side in size.split("x")]
    chips = math.prod(sides) or 1
    if len(sides) == 1:
        chips = max(1, chips // CHIPS[kind].tensor_cores)

    def distance(topology: TpuTopology) -> tuple[bool, float]:
        is_turned = sorted(topology.shape) == sorted(sides)
        return not is_turned, abs(math.log(topology.num_chips / chips))

    topology = min(_by_name(kind).values(), key=distance)
    nearest = _type(topology) if len(sides) == 1 else topology.name
    return f" Did you mean {nearest!r}?"


def _expected(kind: str) -> str:
    names = [_written(shape) for shape in shapes(kind)]
    listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    counted = "TensorCores" if CHIPS[kind].tensor_cores > 1 else "chips"
    return (
        f"Pass one of the shapes {listed} after '{kind}:', or "
        f"a name such as {_type(_by_name(kind)[names[2]])!r}, which gives the "
        f"number of {counted}."
    )


def _type(topology: TpuTopology) -> str:
    """Returns the accelerator type of Cloud TPU."""
    kind = topology.chip.kind
    size = topology.num_chips * topology.chip.tensor_cores
    return f"{'v5litepod' if kind == 'v5e' else kind}-{size}"


def _written(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
