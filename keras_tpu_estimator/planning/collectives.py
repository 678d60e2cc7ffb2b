"""What cores send to each other."""

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping

from keras_tpu_estimator.planning import array_types
from keras_tpu_estimator.planning.array_types import ArrayType
from keras_tpu_estimator.planning.loops import Run

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
)
_GROUPS = re.compile(
    r"replica_groups=(?:\{\{([\d,]*)\}|\[\d+,(\d+)\]<=|"
    r"mesh\[([^\]]*)\] \{(.*?)\})"
)
_IDENTITY = re.compile(r"\bchannel_id=(\d+)|\bchain_id=\"(\d+)\"")


@dataclasses.dataclass(frozen=True)
class Collective:
    """All exchanges of one kind.

    Attributes:
        kind: Such as "all-reduce".
        count: How many there are.
        bytes: Those of the whole arrays, as one core would hold them, by
            dtype: of what is reduced, of what has been gathered.
        sent: Bytes that each core sends if all of them send as little as
            possible.

    Example:

    >>> from keras_tpu_estimator.planning.collectives import Collective
    >>> Collective("all-reduce", 1, {"float32": 4096}, 6144.0).total
    4096
    """

    kind: str
    count: float
    bytes: Mapping[str, float]
    sent: float

    @property
    def total(self) -> float:
        """Bytes of all dtypes."""
        return sum(self.bytes.values())


def of(runs: Iterable[Run], cores: int, share: float = 1.0) -> tuple[Collective, ...]:
    """The collectives of what is run, by kind.

    Args:
        cores: How many cores run it.
        share: How much of it counts. Defaults to all.
    """
    found: dict[str, list[tuple[float, Mapping[str, float], float]]]
    found = collections.defaultdict(list)
    for kind, run in _without_repetition(runs):
        times = run.times * share
        size = _group_size(run.instruction.text, cores)
        arrays = _operands(run) * (size if kind == "all-gather" else 1)
        amounts: dict[str, float] = collections.defaultdict(float)
        for array in arrays:
            amounts[array_types.dtype_name(array.dtype)] += times * array.bytes
        sent = sum(amounts.values()) * _sent_share(kind, size)
        found[kind].append((times, amounts, sent))
    return tuple(
        Collective(
            kind,
            _whole(sum(times for times, _, _ in found[kind])),
            _summed(amounts for _, amounts, _ in found[kind]),
            sum(sent for _, _, sent in found[kind]),
        )
        for kind in KINDS
        if kind in found
    )


def _without_repetition(runs: Iterable[Run]) -> Iterator[tuple[str, Run]]:
    """Each collective once, although it may be written in several fusions.

    That which starts it, those that compute meanwhile, and that which ends it
    all contain it.
    """
    seen = set()
    for run in runs:
        kind = run.instruction.opcode.removesuffix("-start")
        if kind not in KINDS:
            continue
        if _is_scattered(run):
            # They share a number, and are written once.
            yield "reduce-scatter", run
            continue
        if run.is_fused:
            identity = (kind, *_IDENTITY.findall(run.instruction.text))
            if identity in seen:
                continue
            seen.add(identity)
        yield kind, run


def _is_scattered(run: Run) -> bool:
    """Whether a fusion keeps of a sum no more than the core's part."""
    root = run.computation.root
    return (
        run.is_fused
        and root is not None
        and root.opcode == "dynamic-slice"
        and root.operands[0] == run.instruction.name
    )


def _operands(run: Run) -> tuple[ArrayType, ...]:
    made = (run.computation.by_name.get(name) for name in run.instruction.operands)
    return tuple(array for each in made if each for array in each.type)


def _group_size(text: str, cores: int) -> int:
    """How many cores take part in an exchange."""
    groups = _GROUPS.search(text)
    if not groups:
        return cores
    listed, size, axes, used = groups.groups()
    if listed is not None:
        return len(listed.split(",")) if listed else cores
    if size is not None:
        return int(size)
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", axes))
    return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", used))


def _sent_share(kind: str, size: int) -> float:
    if kind in ("collective-permute", "ragged-all-to-all"):
        return 1.0
    return (2 if kind == "all-reduce" else 1) * (size - 1) / size


def _summed(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = collections.defaultdict(float)
    for each in amounts:
        for dtype, number in each.items():
            total[dtype] += number
    return {dtype: _whole(number) for dtype, number in total.items()}


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number
