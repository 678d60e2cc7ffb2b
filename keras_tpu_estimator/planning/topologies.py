"""TPU topologies by the names that users know them under.

Cloud TPU names them by a kind and a shape ("v5e", "4x4"), or by a kind and a
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

from keras_tpu_estimator.ground.base.machine import Machine
from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.suggestions import did_you_mean
from keras_tpu_estimator.planning import gpus
from keras_tpu_estimator.planning.chips import CHIPS, Chip

# What people, JAX and Google Cloud call the kinds. "-8" after some means cores.
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
# Larger ones are made of cubes of 4 x 4 x 4, to as many chips as a job gets.
_PARTS_OF_A_CUBE = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
_MOST_CHIPS = {"v4": 4096, "v5p": 6144, "tpu7x": 9216}
_EXPECTED = (
    f"Expected one of the kinds {', '.join(CHIPS)} with a shape or a size, "
    "such as 'v5e:4x4', 'v5litepod-16' or 'v4-32'."
)
_HOST = (2, 2)
# Those hosts are lent as one machine, by themselves.
_LONE_HOSTS = ((1, 1), (2, 4))


# "O0" of XLA's levels.
_LOWEST_LEVEL = 9


class DeviceTopology(Protocol):
    """Chips of one kind that are connected, and their hosts."""

    @property
    def chip(self) -> Chip:
        """Their kind."""

    @property
    def name(self) -> str:
        """What it is called, however it was asked for."""

    @property
    def num_chips(self) -> int:
        """Chips of all hosts."""

    @property
    def num_cores(self) -> int:
        """Cores of all chips, which are the devices of JAX."""

    @property
    def num_hosts(self) -> int:
        """Hosts, each of which is a process."""

    @property
    def chips_per_host(self) -> int:
        """Chips of one host."""

    @property
    def compiler_options(self) -> dict[str, Any]:
        """What compiling for it without it takes."""

    @property
    def quick_options(self) -> dict[str, Any]:
        """What has the compiler take little trouble, beside those."""

    def of_one_host(self) -> "DeviceTopology":
        """The chips of a host by itself, as it predicts."""

    def machine(self) -> Machine:
        """Its devices, which need not be there."""


@functools.cache
def libtpu_devices(topology: str, **options: object) -> tuple[jax.Device, ...]:
    """The devices of a topology, which compile and do not run.

    Args:
        topology: Its name as libtpu has it, such as "v5e:4x4".
        **options: What libtpu has to know beside the name.

    Returns:
        The same devices in each call.

    Raises:
        ModuleNotFoundError: libtpu is not installed.
        ValueError: libtpu knows no such topology.

    Example:

    >>> from keras_tpu_estimator.planning import libtpu
    >>> len(libtpu.libtpu_devices("v5e:2x2"))
    4
    """
    if not is_libtpu_installed():
        raise ModuleNotFoundError(
            "To compile for a TPU takes its compiler, which is in libtpu. "
            "Expected it to be installed: pip install "
            "'keras-tpu-estimator[tpu]', on x86-64 Linux. It needs no TPU.",
            name="libtpu",
        )
    try:
        described = topologies.get_topology_desc(topology, platform="tpu", **options)
    except jax.errors.JaxRuntimeError as error:
        if "INVALID_ARGUMENT" not in str(error):
            raise
        raise ValueError(
            f"The libtpu that is installed knows no topology {topology!r} with "
            f"{options}. Choose another, or update libtpu along with JAX."
        ) from error
    return tuple(described.devices)


def is_libtpu_installed() -> bool:
    """Whether JAX will find libtpu.

    Example:

    >>> from keras_tpu_estimator.planning import libtpu
    >>> libtpu.is_libtpu_installed()
    True
    """
    return (
        "TPU_LIBRARY_PATH" in os.environ
        or importlib.util.find_spec("libtpu") is not None
    )


def _least_effort() -> dict[str, Any]:
    """Options of a compilation that takes the least trouble for speed."""
    if "jax_exec_time_optimization_effort" in jax.config.values:  # To 0.10.
        return {"exec_time_optimization_effort": -1.0}
    return {"optimization_level": _LOWEST_LEVEL}


@dataclasses.dataclass(frozen=True)
class TpuTopology:
    """Chips of one kind that are connected, and their hosts.

    Attributes:
        shape: How many there are along each axis.

    Raises:
        ValueError: There are no boards of that shape.

    Example:

    >>> from keras_tpu_estimator.planning import topologies
    >>> topology = topologies.parse("v5litepod-16")
    >>> topology.name, topology.num_cores, topology.num_hosts
    ('v5e:4x4', 16, 4)
    """

    chip: Chip
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.shape not in shapes(self.chip.kind):
            raise ValueError(
                f"There is no {self.chip.kind} of {_written(self.shape)} "
                f"chips. {_expected(self.chip.kind)}"
            )

    @property
    def name(self) -> str:
        """The same name, however it was asked for: "v5e:4x4"."""
        return f"{self.chip.kind}:{_written(self.shape)}"

    @property
    def num_chips(self) -> int:
        """Chips of all hosts."""
        return math.prod(self.shape)

    @property
    def num_cores(self) -> int:
        """Cores of all chips, which are the devices of JAX."""
        return self.num_chips * self.chip.cores

    @property
    def host_shape(self) -> tuple[int, ...]:
        """How many chips of one host there are along each axis."""
        if self.shape in _LONE_HOSTS:
            return self.shape
        return (*_HOST, 1)[: len(self.shape)]

    @property
    def chips_per_host(self) -> int:
        """Chips of one host."""
        return math.prod(self.host_shape)

    @property
    def num_hosts(self) -> int:
        """Hosts, each of which is a process."""
        return self.num_chips // self.chips_per_host

    @property
    def options(self) -> dict[str, object]:
        """What `get_topology_desc` has to be told beside the name."""
        bounds = (*self.host_shape, 1)[:3]
        options: dict[str, object] = {"chips_per_host_bounds": bounds}
        if self.chip.cores < self.chip.tensor_cores:
            options["chip_config_name"] = "megacore"
        return options

    @property
    def compiler_options(self) -> dict[str, Any]:
        """Nothing beside what it has for all."""
        return {}

    @property
    def quick_options(self) -> dict[str, Any]:
        """Has it search less for the fastest way."""
        return _least_effort()

    def of_one_host(self) -> Self:
        """The chips of a host by itself, as it predicts."""
        return dataclasses.replace(self, shape=self.host_shape)

    def machine(self) -> Machine:
        """Its devices, which need not be there.

        Raises:
            ModuleNotFoundError: The TPU's compiler is not installed.
        """
        return Machine(libtpu_devices(self.name, **self.options))


def parse(name: str) -> DeviceTopology:
    """The topology of a name.

    Args:
        name: A kind and a shape, such as "v5e:4x4" or "v4:2x2x1", or what
            Cloud TPU calls an accelerator type, such as "v5litepod-16" or
            "v4-32". Case, spaces and what stands between them do not matter.
            Or GPUs, such as "h100:1x8".

    Raises:
        TypeError: The name is no string.
        ValueError: Nothing has that name.

    Example:

    >>> from keras_tpu_estimator.planning import topologies
    >>> topologies.parse("V4-32").name, topologies.parse("tpu v6e 2x2").name
    ('v4:2x2x4', 'v6e:2x2')
    >>> topologies.parse("v5e:4x5")
    Traceback (most recent call last):
    ...
    ValueError: There is no TPU topology 'v5e:4x5'. Did you mean 'v5e:4x4'? ...
    """
    if not isinstance(name, str):
        raise TypeError(
            f"`topology` should be a string. Received: {shown(name)}. Pass one "
            "such as 'v5e:4x4'."
        )
    of_gpus = gpus.parse(name)
    if of_gpus is not None:
        return of_gpus
    kind, size = _split(name)
    topology = _by_name(kind).get(size) if kind else None
    if topology is None:
        raise ValueError(_unknown(name, kind, size))
    return topology


def parse_each(names: Sequence[str]) -> tuple[DeviceTopology, ...]:
    """The boards of several names.

    Args:
        names: As for `parse`.

    Raises:
        TypeError: They are no list of names, or one is no string.
        ValueError: There is none, or nothing has that name.

    Example:

    >>> from keras_tpu_estimator.planning import topologies
    >>> [topology.name for topology in topologies.parse_each(["v5e-4", "v4-8"])]
    ['v5e:2x2', 'v4:2x2x1']
    """
    if not isinstance(names, Sequence):
        parse(names)
    if not names:
        raise ValueError(
            "`topology` should be one at least. Received an empty list. Pass "
            "one such as 'v5e:4x4'."
        )
    return tuple(map(parse, names))


@functools.cache
def shapes(kind: str) -> tuple[tuple[int, ...], ...]:
    """The shapes of boards of a kind, from the smallest.

    Args:
        kind: That of a chip, such as "v4".

    Example:

    >>> from keras_tpu_estimator.planning import topologies
    >>> topologies.shapes("v6e")[:3]
    ((1, 1), (2, 2), (2, 4))
    """
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
    """Those of a kind, by shape ("4x4") and by size ("16")."""
    chip, found = CHIPS[kind], {}
    for shape in shapes(kind):
        topology = TpuTopology(chip, shape)
        found[_written(shape)] = topology
        # Of several shapes of one size, the first is most like a cube.
        found.setdefault(str(topology.num_chips * chip.tensor_cores), topology)
    return found


def _split(name: str) -> tuple[str, str]:
    """The kind of a name, or "", and its size."""
    plain = re.sub(r"[\s_]", "", name.lower())
    if not plain.startswith("tpu7x"):
        plain = plain.removeprefix("tpu").lstrip("-:")
    # The longest first: "v5" is another kind than "v5litepod".
    for written in sorted(_KINDS, key=len, reverse=True):
        if plain.startswith(written):
            return _KINDS[written], plain.removeprefix(written).lstrip("-:")
    return "", plain


def _unknown(name: str, kind: str, size: str) -> str:
    meant = _nearest(kind, size) or did_you_mean(
        name.strip().lower(),
        (_type(topology) for each in CHIPS for topology in _by_name(each).values()),
    )
    expected = _expected(kind) if kind else _EXPECTED
    return f"There is no TPU topology {name!r}.{meant} {expected}"


def _nearest(kind: str, size: str) -> str:
    """A question after a topology of about that many chips, or ""."""
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
        f"Expected one of the shapes {listed} after '{kind}:', or "
        f"{_type(_by_name(kind)[names[2]])!r} and its like, which give the "
        f"number of {counted}."
    )


def _type(topology: TpuTopology) -> str:
    """What Cloud TPU calls an accelerator type."""
    kind = topology.chip.kind
    size = topology.num_chips * topology.chip.tensor_cores
    return f"{'v5litepod' if kind == 'v5e' else kind}-{size}"


def _written(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
