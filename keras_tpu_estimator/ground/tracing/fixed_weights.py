"""Weights that a trace has as constants, so that nothing trains or saves them.

A model of flax or equinox that a function closes over is arrays to JAX, which
become constants; one that the function makes is made anew, of a constant key,
in each step. What tells a weight from a mask or a table of positions is that
it is multiplied, as a matrix or a kernel, with what is no constant.
"""

import dataclasses
import math
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend import core as jex

from keras_tpu_estimator.ground.tracing.jaxprs import Scan
from keras_tpu_estimator.ground.tracing.jaxprs import inner_functions

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
    _Search(found).outputs(traced.jaxpr, [None] * len(traced.jaxpr.invars))
    return list(found.values())


@dataclasses.dataclass(frozen=True)
class _Search:
    """Follows constants through a function.

    Attributes:
        found: The weights by where they come from, to be added to.
    """

    found: dict[Any, FixedWeight]

    def outputs(
        self, jaxpr: jex.Jaxpr, inputs: Sequence[_Sources]
    ) -> list[_Sources]:
        """What the results of a function are computed of."""
        known: dict[Any, _Sources] = {v: _array(v) for v in jaxpr.constvars}
        known.update(zip(jaxpr.invars, inputs, strict=True))

        def sources(atom: Any) -> _Sources:
            return (
                _array(atom) if isinstance(atom, jex.Literal) else known[atom]
            )

        for equation in jaxpr.eqns:
            given = [sources(atom) for atom in equation.invars]
            self._look_at(equation, given)
            results = self._results(equation, given)
            known.update(zip(equation.outvars, results, strict=True))
        return [sources(atom) for atom in jaxpr.outvars]

    def _look_at(self, equation: Any, given: Sequence[_Sources]) -> None:
        if equation.primitive.name not in _PRODUCTS or None not in given[:2]:
            return
        for atom, sources in zip(equation.invars, given, strict=True):
            for each in sources or ():
                is_random = isinstance(each, _Draw)
                weight = atom if is_random else each
                if _is_weight(weight.aval):
                    shape = tuple(weight.aval.shape)
                    dtype = weight.aval.dtype.name
                    self.found[each] = FixedWeight(shape, dtype, is_random)

    def _results(
        self, equation: Any, given: list[_Sources]
    ) -> Sequence[_Sources]:
        name, params = equation.primitive.name, equation.params
        count = len(equation.outvars)
        inner = list(inner_functions(params))
        if name == "stop_gradient":
            return [_NONE if given[0] is not None else None]
        if name in _RANDOM and None not in given:
            return [frozenset([_Draw(equation)])] * count
        if name == "scan":
            return self._of_scan(Scan.of(equation), given)
        if name == "cond":
            branches = [self.outputs(each, given[1:]) for each in inner]
            return [
                _all((given[0], *each)) for each in zip(*branches, strict=True)
            ]
        if len(inner) == 1 and len(inner[0].invars) == len(given):
            return self.outputs(inner[0], given)
        return [_all(given)] * count

    def _of_scan(self, scan: Scan, given: list[_Sources]) -> list[_Sources]:
        """As of one round, with all that comes back from the round before."""
        first, end = scan.constants, scan.constants + scan.carried
        while True:
            results = self.outputs(scan.body, given)
            pairs = zip(given[first:end], results[: scan.carried], strict=True)
            back = list(map(_all, pairs))
            if back == given[first:end]:
                return results
            given = [*given[:first], *back, *given[end:]]


@dataclasses.dataclass(frozen=True, eq=False)
class _Draw:
    """An equation that draws random numbers of constants."""

    equation: Any


def _array(atom: Any) -> frozenset[Any]:
    return frozenset([atom]) if _is_weight(atom.aval) else _NONE


def _is_weight(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return (
        dtype is not None
        and jnp.issubdtype(dtype, jnp.floating)
        and aval.size > _SMALL
    )


def _all(sources: Iterable[_Sources]) -> _Sources:
    """What a value is computed of that is computed of all of these."""
    together = _NONE
    for each in sources:
        if each is None:
            return None
        together |= each
    return together
