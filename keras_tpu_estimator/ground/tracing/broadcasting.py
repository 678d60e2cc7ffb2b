"""Where labels of one axis meet outputs of two, so that each meets all others.

Of shapes `(32,)` and `(32, 1)` the difference is `(32, 32)`: no error, and a
loss that trains something else.
"""

import dataclasses
import functools
import operator
import pathlib
import types
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import keras
from jax.extend import core as jex

from keras_tpu_estimator.ground.tracing.dataflow import Analysis, outputs

# From where a value comes: labels, anything else, or nothing but constants.
_LABELS, _OTHERS = 1, 2
_PAIRS = [_LABELS, _OTHERS], [_LABELS, _LABELS | _OTHERS]
_PACKAGE = str(pathlib.Path(__file__).parents[1])
_JAX = str(pathlib.Path(jax.__file__).parent)
_LIBRARIES = (_JAX, str(pathlib.Path(keras.__file__).parent), _PACKAGE)


@dataclasses.dataclass(frozen=True)
class Crossing:
    """One operation that takes each of the labels with each of the outputs.

    Attributes:
        labels: The shape of the labels, before they were broadcast.
        outputs: The shape of what they met.
        line: The number of that line.
    """

    labels: tuple[int, ...]
    outputs: tuple[int, ...]
    file: str
    line: int


def crossings(traced: jex.ClosedJaxpr, labels: Sequence[bool]) -> list[Crossing]:
    """The operations that have an axis for labels, and one for outputs.

    Only if broadcasting made it so, not where a program has asked for it, as
    by `labels[None, :]`.

    Args:
        labels: For each argument, whether it is one of the labels.

    Example:

    >>> import jax.numpy as jnp
    >>> traced = jax.make_jaxpr(lambda y, labels: y - labels)(
    ...     jnp.ones((4, 1)), jnp.ones(4)
    ... )
    >>> [(c.labels, c.outputs) for c in crossings(traced, [False, True])]
    [((4,), (4, 1))]
    """
    sources = [_LABELS if own else _OTHERS for own in labels]
    search = _Search()
    outputs(traced, sources, search)
    return list(search.found)


@dataclasses.dataclass(frozen=True)
class _Search(Analysis[int]):
    """Follows labels and outputs through a function.

    Attributes:
        found: The operations as keys, to be added to, in their order.
        made: The operation that made a value.
    """

    found: dict[Crossing, None] = dataclasses.field(default_factory=dict)
    made: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def constant(self, atom: Any) -> int:
        return 0

    def join(self, facts: Sequence[int]) -> int:
        return functools.reduce(operator.or_, facts, 0)

    def chosen(self, fact: int, by: int) -> int:
        # Labels that a condition chooses are labels.
        return fact

    def look(self, equation: Any, facts: list[int]) -> None:
        self.made.update(dict.fromkeys(equation.outvars, equation))
        if len(facts) != 2 or sorted(facts) not in _PAIRS:
            return
        own, other = equation.invars
        if facts[0] != _LABELS:
            own, other = other, own
        self.found.update(dict.fromkeys(_of_pair(equation, own, other, self.made)))


def _of_pair(
    equation: Any, own: Any, other: Any, made: dict[Any, Any]
) -> Iterator[Crossing]:
    shapes = own.aval.shape, other.aval.shape
    size = max(max(shapes[0], default=1), 1)
    if sorted(shapes) != [(1, size), (size, 1)] or size == 1:
        return
    for each in (own, other):
        maker = None if isinstance(each, jex.Literal) else made.get(each)
        if (
            maker is not None
            and maker.primitive.name == "broadcast_in_dim"
            and maker.invars[0].aval.shape == (size,)
            and _place(maker, (_JAX,)) == _place(equation, (_JAX,))
        ):
            narrow = (size,)
            labels = narrow if each is own else shapes[0]
            outputs = narrow if each is other else shapes[1]
            file, code, instruction = _place(equation, _LIBRARIES)
            yield Crossing(labels, outputs, file, _line(code, instruction))


def _place(
    equation: Any, libraries: tuple[str, ...]
) -> tuple[str, types.CodeType | None, int]:
    """Where it was called: the file, its code, and the place in there."""
    trace = equation.source_info.traceback
    # Two calls may stand in one line, which a traceback of Python cannot tell.
    frames = () if trace is None else zip(*trace.raw_frames(), strict=True)
    for code, instruction in frames:  # From the innermost call on.
        if not code.co_filename.startswith(libraries):
            return code.co_filename, code, instruction
    return "an unknown file", None, 0


def _line(code: types.CodeType | None, instruction: int) -> int:
    """The number of the line that an instruction stands in."""
    if code is None:
        return 0
    for first, end, line in code.co_lines():
        if first <= instruction < end and line is not None:
            return line
    return code.co_firstlineno
