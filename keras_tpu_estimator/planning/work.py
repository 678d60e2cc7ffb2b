"""What instructions compute, and what of a chip's memory they move."""

import re
from collections.abc import Iterable, Mapping

from keras_tpu_estimator.planning import products
from keras_tpu_estimator.planning.array_types import ArrayType
from keras_tpu_estimator.planning.hlo import Computation, Instruction
from keras_tpu_estimator.planning.loops import Run

# They move or name what there is, or belong to another instruction.
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
# XLA counts them apart: a core has a unit of its own for them.
_TRANSCENDENTAL = frozenset(
    "atan2 cbrt cosine erf exponential exponential-minus-one log log-plus-one "
    "logistic power rsqrt sine sqrt tan tanh".split()
)
_SLICES = ("dynamic-slice", "gather", "slice")
# Code that is not XLA's: Pallas kernels, and the libraries of other devices.
_KERNELS = re.compile(r"tpu_custom_call|__.*|triton.*|mosaic.*|lapack.*|.*_ffi")


def flops(runs: Iterable[Run]) -> float:
    """Floating point operations, as XLA counts them.

    Two for each pair of factors in a product; one for each element that other
    operations make, but those such as `tanh` and what only moves elements.
    """
    return float(sum(run.times * _flops(run) for run in runs))


def bytes_moved(runs: Iterable[Run], computations: Mapping[str, Computation]) -> float:
    """Bytes that instructions read from a chip's large memory, or write to it.

    What stays in the small memory of a core counts only where it gets there
    from the large one, or back.

    Args:
        computations: Those of the program, by name.
    """
    return float(
        sum(run.times * _bytes(run, computations) for run in runs if not run.is_fused)
    )


def bytes_copied(runs: Iterable[Run]) -> float:
    """Bytes of copies that are made in a chip's large memory."""
    return float(
        sum(
            run.times * _held(run.instruction.type)
            for run in runs
            if run.instruction.opcode == "copy" and not run.is_fused
        )
    )


def kernels(runs: Iterable[Run]) -> tuple[str, ...]:
    """Kernels that are run, of whose work nothing is known."""
    targets = {run.instruction.target for run in runs}
    found = filter(_KERNELS.fullmatch, targets)
    return tuple(sorted(each for each in found if not products.is_counted(each)))


def _flops(run: Run) -> float:
    each = run.instruction
    opcode = each.opcode
    operands = _operands(each, run.computation)
    of_product = products.flops(each, operands)
    if of_product is not None:
        return of_product
    if opcode in _WITHOUT_ARITHMETIC or opcode.endswith(("-start", "-done")):
        return 0
    if opcode == "reduce":
        # The second half of the operands is what sums start from.
        return _size(operands[: len(operands) // 2])
    return 0 if opcode in _TRANSCENDENTAL else _size(each.type)


def _bytes(run: Run, computations: Mapping[str, Computation]) -> int:
    each = run.instruction
    if each.opcode in _FREE or each.opcode.endswith(("-done", "-update")):
        return 0
    if each.opcode == "custom-call" and not each.operands:
        return 0
    inner = computations.get(each.called.get("calls", ""))
    operands = [
        made.type if made else ()
        for made in map(run.computation.by_name.get, each.operands)
    ]
    if each.opcode == "fusion" and inner:
        return _bytes_of_fusion(each, inner, operands)
    if each.opcode in _SLICES:
        return 2 * _held(each.type)
    if each.opcode == "dynamic-update-slice" and len(operands) > 1:
        return 2 * _held(operands[1])
    if each.opcode.startswith(_SLICES):
        # Started: the result names what it is cut from as well.
        return _sized(each.type[1:]) + _held(each.type[1:])
    if each.opcode.endswith("-start") and each.opcode != "all-reduce-start":
        return _held(each.type)
    return _held(each.type) + sum(map(_held, operands))


def _bytes_of_fusion(
    each: Instruction, inner: Computation, operands: list[tuple[ArrayType, ...]]
) -> int:
    read = 0
    written = _held(each.type)
    for instruction in inner.instructions:
        if instruction.opcode != "parameter":
            continue
        number = int(instruction.literal)
        whole = operands[number] if number < len(operands) else instruction.type
        users = _users(inner, instruction.name)
        if users and all(user.opcode in _SLICES for user in users):
            read += sum(min(_sized(user.type), _held(whole)) for user in users)
        elif users and all(
            user.opcode == "dynamic-update-slice"
            and user.operands[0] == instruction.name
            for user in users
        ):
            # Written where it is; only the part that is new.
            parts = sum(
                _sized(inner.by_name[user.operands[1]].type)
                for user in users
                if user.operands[1] in inner.by_name
            )
            written -= max(0, _held(whole) - parts)
        else:
            read += _held(whole)
    return read + max(0, written)


def _users(computation: Computation, name: str) -> list[Instruction]:
    """Who reads a value, under whatever name."""
    found = []
    for each in computation.instructions:
        if name in each.operands:
            if each.opcode == "bitcast":
                found += _users(computation, each.name)
            else:
                found.append(each)
    return found


def _operands(each: Instruction, computation: Computation) -> tuple[ArrayType, ...]:
    made = map(computation.by_name.get, each.operands)
    return tuple(array for one in made if one for array in one.type)


def _held(arrays: tuple[ArrayType, ...]) -> int:
    """Bytes of those in the large memory."""
    return sum(array.padded_bytes for array in arrays if not array.space)


def _sized(arrays: tuple[ArrayType, ...]) -> int:
    return sum(array.padded_bytes for array in arrays)


def _size(arrays: tuple[ArrayType, ...]) -> int:
    return sum(array.size for array in arrays)
