"""Analyses of traced functions: differing values, constant weights, axes, sums.

`varying` finds results that differ between cores. `fixed_weights` finds weights that a
trace contains as constants, so that they are neither trained nor saved: a flax or
equinox model that a function closes over, or one that it makes from a constant key in
each step. A weight, unlike a mask or a table of positions, is multiplied as a matrix or
kernel with a non-constant. `crossings` finds labels of shape `(32,)` that are broadcast
against outputs of shape `(32, 1)`: the difference has shape `(32, 32)`, without an
error. `are_added_to` finds states to which a step only adds.
"""

import dataclasses
import functools
import math
import operator
import pathlib
import types
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.extend import core as jex

from keras_tpu_estimator.base.tracing.jaxprs import Analysis, outputs

_TO_ALL = ("psum", "pmax", "pmin", "all_gather")


_PRODUCTS = ("conv_general_dilated", "dot_general", "ragged_dot_general")
_RANDOM = ("random_bits", "rng_bit_generator", "threefry2x32")
# A color matrix, a blur or an 8 x 8 transform has no more numbers.
_SMALL = 64


# The origin of a value: labels or other arguments; 0 for constants.
_LABELS, _OTHERS = 1, 2
_PAIRS = [_LABELS, _OTHERS], [_LABELS, _LABELS | _OTHERS]
_PACKAGE = str(pathlib.Path(__file__).parents[1])
_JAX = str(pathlib.Path(jax.__file__).parent)
_LIBRARIES = (_JAX, str(pathlib.Path(keras.__file__).parent), _PACKAGE)


def varying(
    traced: jex.ClosedJaxpr, inputs: Sequence[bool], axes: Sequence[str]
) -> list[bool]:
    """Returns which outputs may differ between cores.

    Values computed from equal values are equal, and so are reductions over all cores.
    All other values count as different.

    Args:
        inputs: For each argument, whether it differs between cores.
        axes: The names of the cores' mesh axes; none for one core.
    """
    if not axes:
        return [False] * len(traced.jaxpr.outvars)
    return outputs(traced, inputs, _Varying(frozenset(axes)))


def connected(traced: jex.ClosedJaxpr) -> list[frozenset[int]]:
    """Returns for each output the numbers of the arguments that it has gradients by."""
    numbers = range(len(traced.jaxpr.invars))
    return outputs(traced, [frozenset([n]) for n in numbers], _Connected())


class _Connected(Analysis[frozenset[int]]):
    """The fact by which arguments a value has gradients, as in TensorFlow."""

    def constant(self, atom: Any) -> frozenset[int]:
        return frozenset()

    def join(self, facts: Sequence[frozenset[int]]) -> frozenset[int]:
        return frozenset[int]().union(*facts)

    def results(
        self, equation: Any, facts: list[frozenset[int]]
    ) -> list[frozenset[int]]:
        if equation.primitive.name == "stop_gradient":
            return [frozenset()] * len(equation.outvars)
        joined = self.join(facts)
        # Integers have no gradients; references have no dtype.
        dtypes = [getattr(v.aval, "dtype", jnp.float32) for v in equation.outvars]
        return [
            joined if jnp.issubdtype(dtype, jnp.inexact) else frozenset()
            for dtype in dtypes
        ]

    def selected(self, fact: frozenset[int], by: frozenset[int]) -> frozenset[int]:
        return fact


@dataclasses.dataclass(frozen=True)
class _Varying(Analysis[bool]):
    """The fact whether a value differs between cores, which have these mesh axes."""

    axes: frozenset[str]

    def constant(self, atom: Any) -> bool:
        return False

    def join(self, facts: Sequence[bool]) -> bool:
        return any(facts)

    def results(self, equation: Any, facts: list[bool]) -> list[bool]:
        name, params = equation.primitive.name, equation.params
        if name == "axis_index":
            return [bool(self.axes & _axes_of(params))]
        if self._reduces(name, params):
            return [False] * len(equation.outvars)
        return super().results(equation, facts)

    def _reduces(self, name: str, params: Any) -> bool:
        """Returns whether an operation returns the same result on all cores."""
        in_groups = params.get("axis_index_groups") is not None
        over_all = self.axes <= _axes_of(params)
        return name in _TO_ALL and over_all and not in_groups


def _axes_of(params: Any) -> frozenset[Any]:
    """Returns the mesh axes of an operation."""
    over = params.get("axes", params.get("axis_name", ()))
    return frozenset(over if isinstance(over, list | tuple) else (over,))


@dataclasses.dataclass(frozen=True)
class FixedWeight:
    """A weight that is not a variable; a random one is drawn again in each step."""

    shape: tuple[int, ...]
    dtype: str
    is_random: bool

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


# The constants that a value depends on: arrays, and equations that draw numbers.
# `None` for values that depend on an argument.
_Sources = frozenset[Any] | None
_NO_SOURCES: frozenset[Any] = frozenset()


def fixed_weights(traced: jex.ClosedJaxpr) -> list[FixedWeight]:
    """Returns the weights of a traced function that depend on no argument.

    Each array appears once, in the order of use. Arrays of at most 64 numbers,
    integers, and arrays behind `jax.lax.stop_gradient` are omitted.
    """
    weights: dict[Any, FixedWeight] = {}
    inputs: list[_Sources] = [None] * len(traced.jaxpr.invars)
    outputs(traced, inputs, _WeightSearch(weights))
    return list(weights.values())


@dataclasses.dataclass(frozen=True)
class _WeightSearch(Analysis[_Sources]):
    """Follows constants through a function; collects the weights by their source."""

    weights: dict[Any, FixedWeight]

    def constant(self, atom: Any) -> _Sources:
        return frozenset([atom]) if _is_weight(atom.aval) else _NO_SOURCES

    def join(self, facts: Sequence[_Sources]) -> _Sources:
        joined = _NO_SOURCES
        for sources in facts:
            if sources is None:
                return None
            joined |= sources
        return joined

    def results(self, equation: Any, facts: list[_Sources]) -> list[_Sources]:
        name = equation.primitive.name
        if name == "stop_gradient":
            return [_NO_SOURCES if facts[0] is not None else None]
        if name in _RANDOM and None not in facts:
            return [frozenset([_Draw(equation)])] * len(equation.outvars)
        return super().results(equation, facts)

    def look(self, equation: Any, facts: list[_Sources]) -> None:
        if equation.primitive.name not in _PRODUCTS or None not in facts[:2]:
            return
        for atom, constants in zip(equation.invars, facts, strict=True):
            for source in constants or ():
                is_random = isinstance(source, _Draw)
                weight = atom if is_random else source
                if _is_weight(weight.aval):
                    shape = tuple(weight.aval.shape)
                    dtype = weight.aval.dtype.name
                    self.weights[source] = FixedWeight(shape, dtype, is_random)


@dataclasses.dataclass(frozen=True)
class _Draw:
    """An equation that draws random numbers from constants."""

    equation: Any


def _is_weight(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return (
        dtype is not None and jnp.issubdtype(dtype, jnp.floating) and aval.size > _SMALL
    )


@dataclasses.dataclass(frozen=True)
class Crossing:
    """An operation that combines each label with each output.

    The shape `labels` is that before broadcasting.
    """

    labels: tuple[int, ...]
    outputs: tuple[int, ...]
    file: str
    line: int


def crossings(traced: jex.ClosedJaxpr, labels: Sequence[bool]) -> list[Crossing]:
    """Returns the operations that broadcast labels against outputs.

    Explicit broadcasting, such as `labels[None, :]`, is omitted.

    Args:
        labels: For each argument, whether it is one of the labels.
    """
    sources = [_LABELS if is_label else _OTHERS for is_label in labels]
    search = _CrossingSearch()
    outputs(traced, sources, search)
    return list(search.crossings)


@dataclasses.dataclass(frozen=True)
class _CrossingSearch(Analysis[int]):
    """Follows labels and outputs through a function.

    It collects crossings in order, and the operation that made each value.
    """

    crossings: dict[Crossing, None] = dataclasses.field(default_factory=dict)
    makers: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def constant(self, atom: Any) -> int:
        return 0

    def join(self, facts: Sequence[int]) -> int:
        return functools.reduce(operator.or_, facts, 0)

    def selected(self, fact: int, by: int) -> int:
        # Labels remain labels when a condition selects them.
        return fact

    def look(self, equation: Any, facts: list[int]) -> None:
        self.makers.update(dict.fromkeys(equation.outvars, equation))
        if len(facts) != 2 or sorted(facts) not in _PAIRS:
            return
        label, output = equation.invars
        if facts[0] != _LABELS:
            label, output = output, label
        self.crossings.update(
            dict.fromkeys(_of_pair(equation, label, output, self.makers))
        )


def _of_pair(
    equation: Any, label: Any, output: Any, makers: dict[Any, Any]
) -> Iterator[Crossing]:
    """Yields the crossing of an operation that broadcasts one operand implicitly.

    If it broadcasts both, the user requested all pairs, for example by `jax.vmap`.
    """
    shapes = label.aval.shape[-2:], output.aval.shape[-2:]
    size = max((1, *shapes[0]))
    if sorted(shapes) != [(1, size), (size, 1)] or size == 1:
        return
    is_vector = [_was_vector(operand, equation, makers) for operand in (label, output)]
    if any(is_vector) and not all(is_vector):
        labels, outputs = (
            (size,) if was_vector else shape
            for shape, was_vector in zip(shapes, is_vector, strict=True)
        )
        file, code, instruction = _call_site(equation, _LIBRARIES)
        yield Crossing(labels, outputs, file, _line(code, instruction))


def _was_vector(value: Any, equation: Any, makers: dict[Any, Any]) -> bool:
    """Returns whether an operation inserts one of the last two axes of an operand.

    `jax.vmap` may insert further axes before them.
    """
    size = max(value.aval.shape[-2:])
    while not isinstance(value, jex.Literal) and value in makers:
        maker, rank = makers[value], value.aval.ndim
        if maker.primitive.name != "broadcast_in_dim":
            return False
        if _call_site(maker, (_JAX,)) != _call_site(equation, (_JAX,)):
            return False
        value = maker.invars[0]
        if maker.params["broadcast_dimensions"][-2:] != (rank - 2, rank - 1):
            return bool(value.aval.shape[-1:] == (size,))
    return False


def _call_site(
    equation: Any, libraries: tuple[str, ...]
) -> tuple[str, types.CodeType | None, int]:
    """Returns file, code and instruction of the innermost call outside libraries."""
    trace = equation.source_info.traceback
    # Two calls may be in one line, which a Python traceback cannot distinguish.
    frames = () if trace is None else zip(*trace.raw_frames(), strict=True)
    for code, instruction in frames:  # Starting with the innermost call.
        if not code.co_filename.startswith(libraries):
            return code.co_filename, code, instruction
    return "an unknown file", None, 0


def _line(code: types.CodeType | None, instruction: int) -> int:
    """Returns the line number of an instruction."""
    if code is None:
        return 0
    for first, end, line in code.co_lines():
        if first <= instruction < end and line is not None:
            return line
    return code.co_firstlineno


# The fact of a value that depends on no state, and of one that is no sum with a state.
# Other facts are the number of the state to which the value adds something.
_NO_STATE, _NO_SUM = -1, -2
_UNCHANGED = ("convert_element_type", "copy", "reshape", "squeeze", "broadcast_in_dim")


def are_added_to(traced: jex.ClosedJaxpr, count: int) -> list[bool]:
    """Returns for each of the first `count` arguments, which are states, whether the
    result of the same number is the state plus a value that depends on no state.
    """
    count_of_rest = len(traced.jaxpr.invars) - count
    facts = outputs(traced, [*range(count), *[_NO_STATE] * count_of_rest], _SumSearch())
    return [facts[number] == number for number in range(count)]


class _SumSearch(Analysis[int]):
    """The fact to which state a value adds."""

    def constant(self, atom: Any) -> int:
        return _NO_STATE

    def join(self, facts: Sequence[int]) -> int:
        first, *further = set(facts) or {_NO_STATE}
        return _NO_SUM if further else first

    def selected(self, fact: int, by: int) -> int:
        return fact if by == _NO_STATE else _NO_SUM

    def results(self, equation: Any, facts: list[int]) -> list[int]:
        if set(facts) <= {_NO_STATE}:
            return [_NO_STATE] * len(equation.outvars)
        state, *summands = facts
        if equation.primitive.name in ("add", "add_any"):
            state, *summands = sorted(facts, reverse=True)
        is_sum = set(summands) <= {_NO_STATE} and _is_sum(equation)
        return [state if is_sum else _NO_SUM] * len(equation.outvars)


def _is_sum(equation: Any) -> bool:
    """Returns whether an operation adds its other arguments to its first one."""
    name, before, after = equation.primitive.name, equation.invars[0], equation.outvars
    if name in ("add", "add_any", "sub", "scatter-add"):
        return True
    return name in _UNCHANGED and before.aval == after[0].aval
