"""How often loops of a compiled program run."""

import re
from collections.abc import Mapping

from keras_tpu_estimator.planning.hlo import Computation, Instruction

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def trip_count(
    computation: Computation,
    loop: Instruction,
    computations: Mapping[str, Computation],
) -> int | None:
    """How often a loop runs that counts up from one number to another.

    Args:
        loop: A "while".
        computations: Those of the program, by name.

    Returns:
        `None` for other loops.

    Example:

    >>> from keras_tpu_estimator.planning import hlo
    >>> from keras_tpu_estimator.planning.trip_counts import trip_count
    >>> module = hlo.parse('''ENTRY %main (x: s32[]) -> s32[] {
    ...   %x = s32[] parameter(0)
    ...   ROOT %loop = s32[] while(%x), condition=%less, body=%more
    ... }''')
    >>> trip_count(module.entry, module.entry.root, module.computations)
    """
    known = _KNOWN.search(loop.text)
    if known:
        return int(known[1])
    condition = computations.get(loop.called.get("condition", ""))
    body = computations.get(loop.called.get("body", ""))
    if condition is None or body is None:
        return None
    index, limit = _limit(condition)
    if index is None or limit is None:
        return None
    first = _constant(_element(computation, loop.operands, index))
    step = _step(body, index)
    if first is None or not step:
        return None
    return max(0, -(-(limit - first) // step))


def _limit(condition: Computation) -> tuple[int | None, int | None]:
    """Which element of its state a loop counts with, and up to what."""
    test = condition.root
    if (
        test is None
        or test.opcode != "compare"
        or test.attribute("direction") != "LT"
        or len(test.operands) != 2
    ):
        return None, None
    counter, limit = (_origin(condition, name) for name in test.operands)
    return _index(counter), _constant(limit)


def _step(body: Computation, index: int) -> int | None:
    """What a body adds to an element of the state."""
    made = _element(body, (body.root.name,) if body.root else (), index)
    total = 0
    while made is not None and made.opcode == "add":
        one, other = (_origin(body, name) for name in made.operands)
        if _constant(one) is not None:
            one, other = other, one
        added = _constant(other)
        if added is None:
            return None
        total, made = total + added, one
    return total if _index(made) == index else None


def _element(
    computation: Computation, names: tuple[str, ...], index: int
) -> Instruction | None:
    """What has made an element of a tuple."""
    whole = _origin(computation, names[0]) if names else None
    if whole is None or whole.opcode != "tuple" or index >= len(whole.operands):
        return None
    return _origin(computation, whole.operands[index])


def _origin(computation: Computation, name: str) -> Instruction | None:
    """What has made a value that may have been copied since."""
    found = computation.by_name.get(name)
    while found and found.opcode in ("copy", "bitcast") and found.operands:
        found = computation.by_name.get(found.operands[0])
    return found


def _index(made: Instruction | None) -> int | None:
    if made is None or made.opcode != "get-tuple-element":
        return None
    index = made.attribute("index")
    return int(index) if index else None


def _constant(made: Instruction | None) -> int | None:
    if made is None or made.opcode != "constant" or not made.literal.isdigit():
        return None
    return int(made.literal)
