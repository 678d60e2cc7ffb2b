"""The work of instructions: floating point operations, memory traffic, collectives."""

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping

from keras_tpu_estimator.planning import hlo
from keras_tpu_estimator.planning.attention import attention_flops, is_forward
from keras_tpu_estimator.planning.hlo import ArrayType, Computation, Instruction
from keras_tpu_estimator.planning.loops import Run

# These instructions name or move values, or belong to another instruction.
_FREE = frozenset(
    "parameter tuple get-tuple-element bitcast constant while conditional call "
    "after-all add-dependency opt-barrier partition-id replica-id domain "
    "get-dimension-size call-start async-start".split()
)
_WITHOUT_ARITHMETIC = _FREE | frozenset(
    "fusion broadcast reshape transpose copy convert slice concatenate pad "
    "reverse iota gather dynamic-slice dynamic-update-slice custom-call "
    "rng-bit-generator bitcast-convert sort infeed outfeed send recv".split()
)
# XLA counts these separately, because a core has a separate unit for them.
_TRANSCENDENTAL = frozenset(
    "atan2 cbrt cosine erf exponential exponential-minus-one log log-plus-one "
    "logistic power rsqrt sine sqrt tan tanh".split()
)
_SLICES = ("dynamic-slice", "gather", "slice")
# Code from outside XLA: Pallas kernels, and the libraries of other devices.
_KERNELS = re.compile(r"tpu_custom_call|__.*|triton.*|mosaic.*|lapack.*|.*_ffi")


_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"(\w+)=(-?[\dx_\-]+)")
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([^\]}]*)')
# The positions of a convolution's input, kernel and output among the operands and
# the result (-1). GPU libraries have a separate call for each gradient.
_CONVOLUTIONS = {
    "": (0, 1, -1),
    "__cudnn$convForward": (0, 1, -1),
    "__cudnn$convBiasActivationForward": (0, 1, -1),
    "__cudnn$convBackwardInput": (-1, 1, 0),
    "__cudnn$convBackwardFilter": (0, -1, 1),
}
_PRODUCTS = ("", "__cublas$gemm", "__cublas$lt$matmul")


KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
    "send to another slice",
)
TO_SLICE = KINDS[-1]
_GROUPS = re.compile(
    r"replica_groups=(?:\{\{([\d,]*)\}|\[\d+,(\d+)\]<=|"
    r"mesh\[([^\]]*)\] \{(.*?)\})"
)
_IDENTITY = re.compile(r"\bchannel_id=(\d+)|\bchain_id=\"(\d+)\"")


def flops(runs: Iterable[Run]) -> float:
    """Returns the floating point operations, as XLA counts them: two for each pair of
    factors in a product, and otherwise one for each element of the result.

    Transcendental functions such as `tanh` and operations that only move elements count
    none.
    """
    return float(sum(run.times * _flops(run) for run in runs))


def bytes_moved(runs: Iterable[Run], computations: Mapping[str, Computation]) -> float:
    """Returns the bytes that instructions read from a chip's main memory or write to
    it; values in a core's small memory count only when they are copied from or to the
    main memory.
    """
    return float(
        sum(run.times * _bytes(run, computations) for run in runs if not run.is_fused)
    )


def bytes_copied(runs: Iterable[Run]) -> float:
    """Returns the bytes of copies in a chip's main memory."""
    return float(
        sum(
            run.times * _main_memory_bytes(run.instruction.type)
            for run in runs
            if run.instruction.opcode == "copy" and not run.is_fused
        )
    )


def kernels(runs: Iterable[Run]) -> tuple[str, ...]:
    """Returns the kernels whose work is unknown."""
    targets = {run.instruction.target for run in runs if _attention_flops(run) is None}
    names = filter(_KERNELS.fullmatch, targets)
    return tuple(sorted(name for name in names if not is_product(name)))


def attentions(runs: Iterable[Run]) -> float:
    """Returns the number of attentions that a kernel computes without scores."""
    return float(sum(run.times for run in runs if is_forward(run.instruction)))


def _attention_flops(run: Run) -> float | None:
    return attention_flops(run.instruction, _operands(run.instruction, run.computation))


def _flops(run: Run) -> float:
    instruction = run.instruction
    opcode = instruction.opcode
    operands = _operands(instruction, run.computation)
    of_product = product_flops(instruction, operands)
    if of_product is None:
        of_product = attention_flops(instruction, operands)
    if of_product is not None:
        return of_product
    if opcode in _WITHOUT_ARITHMETIC or opcode.endswith(("-start", "-done")):
        return 0
    if opcode == "reduce":
        # The second half of the operands are the initial values.
        return _size(operands[: len(operands) // 2])
    return 0 if opcode in _TRANSCENDENTAL else _size(instruction.type)


def _bytes(run: Run, computations: Mapping[str, Computation]) -> int:
    instruction = run.instruction
    if instruction.opcode in _FREE or instruction.opcode.endswith(("-done", "-update")):
        return 0
    if instruction.opcode == "custom-call" and not instruction.operands:
        return 0
    inner = computations.get(instruction.called.get("calls", ""))
    operands = [
        operand.type if operand else ()
        for operand in map(run.computation.by_name.get, instruction.operands)
    ]
    if instruction.opcode == "fusion" and inner:
        return _bytes_of_fusion(instruction, inner, operands)
    if instruction.opcode in _SLICES:
        return 2 * _main_memory_bytes(instruction.type)
    if instruction.opcode == "dynamic-update-slice" and len(operands) > 1:
        return 2 * _main_memory_bytes(operands[1])
    if instruction.opcode.startswith(_SLICES):
        # The result of a started slice also contains its operand.
        return _sized(instruction.type[1:]) + _main_memory_bytes(instruction.type[1:])
    if (
        instruction.opcode.endswith("-start")
        and instruction.opcode != "all-reduce-start"
    ):
        return _main_memory_bytes(instruction.type)
    return _main_memory_bytes(instruction.type) + sum(map(_main_memory_bytes, operands))


def _bytes_of_fusion(
    fusion: Instruction, inner: Computation, operands: list[tuple[ArrayType, ...]]
) -> int:
    read = 0
    written = _main_memory_bytes(fusion.type)
    for instruction in inner.instructions:
        if instruction.opcode != "parameter":
            continue
        number = int(instruction.literal)
        array = operands[number] if number < len(operands) else instruction.type
        users = _users(inner, instruction.name)
        # A fusion reads of a large array only the slices that it uses.
        if users and all(user.opcode in _SLICES for user in users):
            read += sum(
                min(_sized(user.type), _main_memory_bytes(array)) for user in users
            )
        elif users and all(
            user.opcode == "dynamic-update-slice"
            and user.operands[0] == instruction.name
            for user in users
        ):
            # Only the updated part of the array is written.
            parts = sum(
                _sized(inner.by_name[user.operands[1]].type)
                for user in users
                if user.operands[1] in inner.by_name
            )
            written -= max(0, _main_memory_bytes(array) - parts)
        else:
            read += _main_memory_bytes(array)
    return read + max(0, written)


def _users(computation: Computation, name: str) -> list[Instruction]:
    """Returns the instructions that read a value, also through bitcasts."""
    users = []
    for instruction in computation.instructions:
        if name in instruction.operands:
            if instruction.opcode == "bitcast":
                users += _users(computation, instruction.name)
            else:
                users.append(instruction)
    return users


def _operands(
    instruction: Instruction, computation: Computation
) -> tuple[ArrayType, ...]:
    operands = map(computation.by_name.get, instruction.operands)
    return tuple(array for operand in operands if operand for array in operand.type)


def _main_memory_bytes(arrays: tuple[ArrayType, ...]) -> int:
    """Returns the bytes of the arrays in the main memory."""
    return sum(array.padded_bytes for array in arrays if not array.space)


def _sized(arrays: tuple[ArrayType, ...]) -> int:
    return sum(array.padded_bytes for array in arrays)


def _size(arrays: tuple[ArrayType, ...]) -> int:
    return sum(array.size for array in arrays)


def is_product(target: str) -> bool:
    """Returns whether `product_flops` counts calls of a library function."""
    return target in _PRODUCTS or target in _CONVOLUTIONS


def product_flops(
    instruction: Instruction, operands: tuple[ArrayType, ...]
) -> float | None:
    """Returns two operations for each pair of factors; `None` if it is no product."""
    target = instruction.target
    if instruction.opcode not in ("dot", "convolution", "custom-call"):
        return None
    if len(operands) < 2 or not instruction.type:
        return None
    arrays = (*operands[:2], instruction.type[0])
    if instruction.opcode != "dot" and target in _CONVOLUTIONS:
        first, second, third = _CONVOLUTIONS[target]
        return _of_convolution(
            instruction, arrays[first], arrays[second], arrays[third]
        )
    if instruction.opcode != "convolution" and target in _PRODUCTS:
        dimensions = _CONTRACTED.search(instruction.text)
        axes = re.findall(r"\d+", dimensions[1] if dimensions else "")
        contracted = math.prod(arrays[0].shape[int(axis)] for axis in axes)
        return 2.0 * arrays[2].size * contracted
    return None


def _of_convolution(
    instruction: Instruction, inputs: ArrayType, kernel: ArrayType, output: ArrayType
) -> float | None:
    labels = _LABELS.match(instruction.attribute("dim_labels") or "")
    if not labels:
        return None
    window = dict(_WINDOW.findall(instruction.attribute("window") or ""))
    groups = int(instruction.attribute("batch_group_count") or 1)
    products = (
        inputs.shape[labels[1].index("b")]
        // groups
        * kernel.shape[labels[2].index("i")]
        * kernel.shape[labels[2].index("o")]
    )
    spatial = sorted(set(labels[1]) - {"b", "f"})
    for number, axis in enumerate(spatial):
        products *= _positions(
            inputs.shape[labels[1].index(axis)],
            output.shape[labels[3].index(axis)],
            {name: _part(text, number) for name, text in window.items()},
        )
    return 2.0 * products


def _part(text: str, number: int) -> tuple[int, ...]:
    """Returns a window's numbers for one axis, such as of "2x1" or "0_1x0_0"."""
    return tuple(map(int, text.split("x")[number].split("_")))


def _positions(size: int, outputs: int, window: dict[str, tuple[int, ...]]) -> int:
    """Counts the pairs of input and kernel elements along an axis, without padding."""
    (width,) = window.get("size", (1,))
    (stride,) = window.get("stride", (1,))
    (before, _) = window.get("pad", (0, 0))
    (apart,) = window.get("lhs_dilate", (1,))
    (spread,) = window.get("rhs_dilate", (1,))
    end = (size - 1) * apart + 1
    return sum(
        sum(
            1
            for at in range(
                position * spread - before,
                position * spread - before + outputs * stride,
                stride,
            )
            if 0 <= at < end and at % apart == 0
        )
        for position in range(width)
    )


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives of one kind.

    Attributes:
        kind: The kind, such as "all-reduce".
        count: The number of collectives.
        bytes: Bytes by dtype of the complete arrays, as one core would hold them:
            reduced values, gathered results.
        sent: Bytes that each core sends if all cores send as little as possible.

    Example:

    >>> from keras_tpu_estimator.planning.work import Collective
    >>> Collective("all-reduce", 1, {"float32": 4096}, 6144.0).total
    4096
    """

    kind: str
    count: float
    bytes: Mapping[str, float]
    sent: float

    @property
    def total(self) -> float:
        """The bytes of all dtypes."""
        return sum(self.bytes.values())


def collectives(
    runs: Iterable[Run], cores: int, share: float = 1.0
) -> tuple[Collective, ...]:
    """Returns the collectives of instructions on `cores` cores by kind, of each of
    which the `share` counts.
    """
    runs_by_kind: dict[str, list[tuple[float, Mapping[str, float], float]]]
    runs_by_kind = collections.defaultdict(list)
    for kind, run in _without_repetition(runs):
        times = run.times * share
        size = _group_size(run.instruction.text, cores)
        arrays = _operands_of(run) * (size if kind == "all-gather" else 1)
        amounts: dict[str, float] = collections.defaultdict(float)
        for array in arrays:
            amounts[hlo.dtype_name(array.dtype)] += times * array.bytes
        sent = sum(amounts.values()) * _sent_share(kind, size)
        runs_by_kind[kind].append((times, amounts, sent))
    return tuple(
        Collective(
            kind,
            _without_fraction(sum(times for times, _, _ in runs_by_kind[kind])),
            _summed(amounts for _, amounts, _ in runs_by_kind[kind]),
            sum(sent for _, _, sent in runs_by_kind[kind]),
        )
        for kind in KINDS
        if kind in runs_by_kind
    )


def _without_repetition(runs: Iterable[Run]) -> Iterator[tuple[str, Run]]:
    """Yields each collective once, although the fusion that starts it, those that
    compute meanwhile and the one that ends it all contain it.
    """
    identities = set()
    for run in runs:
        kind = run.instruction.opcode.removesuffix("-start")
        if kind == "send" and run.instruction.is_between_slices:
            yield TO_SLICE, run
        if kind not in KINDS:
            continue
        if _is_scattered(run):
            # Reduce-scatters share a channel, but appear once.
            yield "reduce-scatter", run
            continue
        if run.is_fused:
            identity = (kind, *_IDENTITY.findall(run.instruction.text))
            if identity in identities:
                continue
            identities.add(identity)
        yield kind, run


def _is_scattered(run: Run) -> bool:
    """Returns whether a fusion keeps only the core's own parts of sums."""
    root = run.computation.root
    if not run.is_fused or root is None:
        return False
    instructions = run.computation.by_name
    # XLA can combine scatters, which then return a tuple.
    is_tuple = root.opcode == "tuple" and root.operands
    results = [instructions.get(name) for name in root.operands] if is_tuple else [root]
    return all(
        result is not None
        and result.opcode == "dynamic-slice"
        and _source(instructions, result.operands[0]) == run.instruction.name
        for result in results
    )


def _source(instructions: Mapping[str, hlo.Instruction], name: str) -> str:
    """Returns the name of the instruction of which this may be an element."""
    element = instructions.get(name)
    if element is None or element.opcode != "get-tuple-element":
        return name
    return element.operands[0]


def _operands_of(run: Run) -> tuple[ArrayType, ...]:
    operands = (run.computation.by_name.get(name) for name in run.instruction.operands)
    return tuple(array for operand in operands if operand for array in operand.type)


def _group_size(text: str, cores: int) -> int:
    """Returns the number of cores that exchange data."""
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
    if kind in ("collective-permute", "ragged-all-to-all", TO_SLICE):
        return 1.0
    return (2 if kind == "all-reduce" else 1) * (size - 1) / size


def _summed(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = collections.defaultdict(float)
    for bytes_by_dtype in amounts:
        for dtype, number in bytes_by_dtype.items():
            total[dtype] += number
    return {dtype: _without_fraction(number) for dtype, number in total.items()}


def _without_fraction(number: float) -> float:
    return int(number) if number == int(number) else number
