"""TPU topologies by the names that users know them under.

Cloud TPU names them by a kind and a shape ("v5e", "4x4"), or by a kind and a
number of chips or cores ("v5litepod-16", "v4-32"). Its pages list the shapes:
https://cloud.google.com/tpu/docs/v5e and those of the other kinds.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, Self

from keras_tpu_estimator.ground.base.machine import Machine
from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.suggestions import did_you_mean
from keras_tpu_estimator.planning import gpus, libtpu
from keras_tpu_estimator.planning.boards import Board
from keras_tpu_estimator.planning.chips import CHIPS, Chip
from keras_tpu_estimator.planning.effort import least_effort

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


@dataclasses.dataclass(frozen=True)
class TpuBoard:
    """Chips of one kind that are connected, and their hosts.

    Attributes:
        shape: How many there are along each axis.

    Raises:
        ValueError: There are no boards of that shape.

    Example:

    >>> from keras_tpu_estimator.planning import topologies
    >>> board = topologies.parse("v5litepod-16")
    >>> board.name, board.num_cores, board.num_hosts
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
    def platform(self) -> str:
        """What JAX calls its devices."""
        return "tpu"

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
        return least_effort()

    def of_one_host(self) -> Self:
        """The chips of a host by itself, as it predicts."""
        return dataclasses.replace(self, shape=self.host_shape)

    def machine(self) -> Machine:
        """Its devices, which need not be there.

        Raises:
            ModuleNotFoundError: The TPU's compiler is not installed.
        """
        return Machine(libtpu.devices(self.name, **self.options))


def parse(name: str) -> Board:
    """The board of a name.

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
    board = _boards(kind).get(size) if kind else None
    if board is None:
        raise ValueError(_unknown(name, kind, size))
    return board


def parse_each(names: Sequence[str]) -> tuple[Board, ...]:
    """The boards of several names.

    Args:
        names: As for `parse`.

    Raises:
        TypeError: They are no list of names, or one is no string.
        ValueError: There is none, or nothing has that name.

    Example:

    >>> from keras_tpu_estimator.planning import topologies
    >>> [board.name for board in topologies.parse_each(["v5e-4", "v4-8"])]
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
def _boards(kind: str) -> dict[str, TpuBoard]:
    """Those of a kind, by shape ("4x4") and by size ("16")."""
    chip, boards = CHIPS[kind], {}
    for shape in shapes(kind):
        board = TpuBoard(chip, shape)
        boards[_written(shape)] = board
        # Of several shapes of one size, the first is most like a cube.
        boards.setdefault(str(board.num_chips * chip.tensor_cores), board)
    return boards


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
        (_type(board) for each in CHIPS for board in _boards(each).values()),
    )
    expected = _expected(kind) if kind else _EXPECTED
    return f"There is no TPU topology {name!r}.{meant} {expected}"


def _nearest(kind: str, size: str) -> str:
    """A question after a board of about that many chips, or ""."""
    if not kind or not re.fullmatch(r"\d+(x\d+)*", size):
        return ""
    sides = [int(side) for side in size.split("x")]
    chips = math.prod(sides) or 1
    if len(sides) == 1:
        chips = max(1, chips // CHIPS[kind].tensor_cores)

    def distance(board: TpuBoard) -> tuple[bool, float]:
        is_turned = sorted(board.shape) == sorted(sides)
        return not is_turned, abs(math.log(board.num_chips / chips))

    board = min(_boards(kind).values(), key=distance)
    nearest = _type(board) if len(sides) == 1 else board.name
    return f" Did you mean {nearest!r}?"


def _expected(kind: str) -> str:
    names = [_written(shape) for shape in shapes(kind)]
    listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    counted = "TensorCores" if CHIPS[kind].tensor_cores > 1 else "chips"
    return (
        f"Expected one of the shapes {listed} after '{kind}:', or "
        f"{_type(_boards(kind)[names[2]])!r} and its like, which give the "
        f"number of {counted}."
    )


def _type(board: TpuBoard) -> str:
    """What Cloud TPU calls an accelerator type."""
    kind = board.chip.kind
    size = board.num_chips * board.chip.tensor_cores
    return f"{'v5litepod' if kind == 'v5e' else kind}-{size}"


def _written(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
