"""Differences of arrays, and how large they may be through rounding alone.

The idea: the old program runs again from values that differ by one unit in the last
place. What this changes, any other order of its operations may change too. Each step
begins anew with such values of the first run. Otherwise an optimizer such as Adam,
which divides tiny gradients by their own size, would let rounding grow from step to
step, until it would explain any difference.

A gradient jumps where an input of a ReLU changes its sign. One unit rarely reaches such
a place, but another order of operations may. So the old program runs two more times,
from values that differ by `_MARGIN` units in opposite directions: an input close to
zero changes its sign in one of them. What both change together is also explained.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

# Two orders of operations differ by about this many times as much.
_MARGIN = 30
# Wider steps than these, relative to a value, are no rounding in 32 bits.
_LARGEST_STEP = 1e-4
# Both programs round to the last place.
_LAST_PLACES = 2.0
_TINY = 1e-30


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of two numbers or arrays.

    Attributes:
        relative: The largest difference, relative to the largest absolute value.
        rounding: The same of the old program and its perturbed copies, per unit.
        last_place: The last place of the values of which these are differences, such
            as that of a variable whose changes are compared.
    """

    relative: float
    rounding: float = 0.0
    last_place: float = 0.0

    @property
    def explained(self) -> float:
        """The largest relative difference that rounding explains."""
        return max(_MARGIN * self.rounding, _LAST_PLACES * self.last_place)

    def exceeds(self, tolerance: float) -> bool:
        """Returns whether it is more than a tolerance and than rounding explains."""
        return not self.relative <= max(tolerance, self.explained)


def of_runs(old: Any, new: Any, near: Any, *far: Any) -> Difference:
    """Returns the difference of two programs, and that of the copies of the old one.

    `near` differs by one unit in the last place, and `far` by `_MARGIN` if it is known.
    """
    # A copy that left the domain of a function says nothing about rounding.
    changes = [
        change if math.isfinite(change) else 0.0
        for change in (relative_difference(old, copy, new) for copy in (near, *far))
    ]
    rounding = max(changes[0], sum(changes[1:]) / _MARGIN)
    return Difference(relative_difference(old, new), rounding)


def relative_difference(one: Any, other: Any, *scales: Any) -> float:
    """Returns the largest difference of two arrays, relative to the largest value.

    It is 0 for equal arrays, also where both are NaN, and infinite for other sizes. The
    largest value may also be in `scales`.

    >>> relative_difference(np.array([1.0, 4.0]), np.array([1.0, 2.0]))
    0.5
    """
    flat = [np.asarray(a, np.float64).reshape(-1) for a in (one, other, *scales)]
    one, other = flat[:2]
    if one.size != other.size:
        return float("inf")
    is_same = (one == other) | (np.isnan(one) & np.isnan(other))
    if is_same.all():
        return 0.0
    gaps = np.abs(one - other)[~is_same]
    scale = max(np.max(np.abs(a), initial=0.0) for a in flat)
    if not np.isfinite(gaps).all():
        return float("inf")
    return float(np.max(gaps) / max(scale, _TINY))


def last_place(value: Any, change: np.ndarray) -> float:
    """Returns the last place of a value, relative to the largest of its changes.

    >>> last_place(np.float32([1.0]), np.float32([0.5]))
    2.384185791015625e-07
    """
    value = np.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.floating) or not value.size:
        return 0.0
    largest = np.max(np.abs(np.asarray(value, np.float64)))
    limits: Any = ml_dtypes.finfo(value.dtype)  # type: ignore[no-untyped-call]
    place = float(limits.eps) * largest
    return float(place / max(np.max(np.abs(change)), _TINY))


def nearly(values: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, np.ndarray]:
    """Returns values whose floats are one unit in the last place larger or smaller."""
    return _perturbed(values, 1, seed)


def roughly(values: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, np.ndarray]:
    """Returns values whose floats are `_MARGIN` units larger or smaller."""
    return _perturbed(values, _MARGIN, seed)


def opposite(values: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, np.ndarray]:
    """Returns values that are smaller where those of `roughly` are larger."""
    return _perturbed(values, -_MARGIN, seed)


def _perturbed(
    values: Mapping[str, np.ndarray], units: int, seed: int
) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {path: _moved(value, units, generator) for path, value in values.items()}


def _moved(value: np.ndarray, units: int, generator: np.random.Generator) -> np.ndarray:
    value = np.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return value
    is_down = generator.random(value.shape) < 0.5
    steps = np.where(is_down, -units, units).astype(value.dtype)
    limits: Any = ml_dtypes.finfo(value.dtype)  # type: ignore[no-untyped-call]
    if abs(units) == 1 or abs(units) * float(limits.eps) > _LARGEST_STEP:
        # Of a few bits, one unit is much.
        moved = np.nextafter(value, steps * np.asarray(np.inf, value.dtype))
    else:
        moved = value + steps * np.spacing(np.abs(value))
    # Zeros stay, such as biases and the state of optimizers.
    return np.asarray(np.where(value == 0, value, moved), value.dtype)
