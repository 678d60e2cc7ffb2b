"""Weights that a trace has as constants, so that nothing trains or saves them.

A model of flax or equinox that a function closes over is arrays to JAX, which
become constants; one that the function makes is made anew, of a constant key,
in each step. What tells a weight from a mask or a table of positions is that
it is multiplied, as a matrix or a kernel, with what is no constant.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend import core as jex

from keras_tpu_estimator.ground.tracing.dataflow import Analysis, outputs

_PRODUCTS = ("conv_general_dilated", "dot_general", "ragged_dot_general")
_RANDOM = ("random_bits", "rng_bit_generator", "threefry2x32")
# A matrix of colours, a blur or an 8 x 8 transform has no more numbers.
_SMALL = 64


@dataclasses.dataclass(frozen=True)
class FixedWeight:
    """One that is no variable.

    Attributes:
        shape: Its shape.
        dtype: The name of its dtype.
        is_random: Whether it is made of random numbers in each step.
    """

    shape: tuple[int, ...]
    dtype: str
    is_random: bool

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


# Constants that a value is computed of: arrays, and equations that draw; `None`
# of what depends on an argument.
_Sources = frozenset[Any] | None
_NONE: frozenset[Any] = frozenset()


def fixed_weights(traced: jex.ClosedJaxpr) -> list[FixedWeight]:
    """The weights of a traced function that no argument has a part in.

    Args:
        traced: The function.

    Returns:
        Each array once, in the order of use. Those of 64 numbers at most, of
        integers, and behind `jax.lax.stop_gradient` are left out.

    Example:

    >>> import jax, numpy as np
    >>> kernel = np.ones((9, 9), "float32")
    >>> traced = jax.make_jaxpr(lambda x: (x @ kernel) * kernel[0])(kernel)
    >>> fixed_weights(traced)
    [FixedWeight(shape=(9, 9), dtype='float32', is_random=False)]
    """
    found: dict[Any, FixedWeight] = {}
    inputs: list[_Sources] = [None] * len(traced.jaxpr.invars)
    outputs(traced, inputs, _Search(found))
    return list(found.values())


@dataclasses.dataclass(frozen=True)
class _Search(Analysis[_Sources]):
    """Follows constants through a function.

    Attributes:
        found: The weights by where they come from, to be added to.
    """

    found: dict[Any, FixedWeight]

    def constant(self, atom: Any) -> _Sources:
        return frozenset([atom]) if _is_weight(atom.aval) else _NONE

    def join(self, facts: Sequence[_Sources]) -> _Sources:
        together = _NONE
        for each in facts:
            if each is None:
                return None
            together |= each
        return together

    def results(self, equation: Any, facts: list[_Sources]) -> list[_Sources]:
        name = equation.primitive.name
        if name == "stop_gradient":
            return [_NONE if facts[0] is not None else None]
        if name in _RANDOM and None not in facts:
            return [frozenset([_Draw(equation)])] * len(equation.outvars)
        return super().results(equation, facts)

    def look(self, equation: Any, facts: list[_Sources]) -> None:
        if equation.primitive.name not in _PRODUCTS or None not in facts[:2]:
            return
        for atom, sources in zip(equation.invars, facts, strict=True):
            for each in sources or ():
                is_random = isinstance(each, _Draw)
                weight = atom if is_random else each
                if _is_weight(weight.aval):
                    shape = tuple(weight.aval.shape)
                    dtype = weight.aval.dtype.name
                    self.found[each] = FixedWeight(shape, dtype, is_random)


@dataclasses.dataclass(frozen=True)
class _Draw:
    """An equation that draws random numbers of constants."""

    equation: Any


def _is_weight(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return (
        dtype is not None and jnp.issubdtype(dtype, jnp.floating) and aval.size > _SMALL
    )
