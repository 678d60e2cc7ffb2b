"""Convolutions in the fastest form for a CPU.

XLA lays convolutions out for its library, Eigen, only in the outermost computation. In
a loop, all but forward convolutions become loops over single numbers. A tap is an
element of the window.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex

from keras_tpu_estimator.base.cpu.rewriting import (
    exact,
    like_of,
    padded,
    slices,
    starts,
)

# The library supports these dtypes; XLA converts bfloat16 to float32 for it.
_OF_LIBRARY = ("bfloat16", "float16", "float32")
_FLOATS = (*_OF_LIBRARY, "float64")
# Measured with 3 x 3 to 11 x 11 taps: unrolled depthwise convolutions are 4 to 40
# times faster, and their gradients 20 to 100 times. More taps would take more than
# a few seconds to compile.
_MOST_TAPS = 128
# Up to 64 groups are 2 to 9 times faster as separate convolutions; each takes 20 ms
# to compile.
_MOST_GROUPS = 64
# For 4 positions the library takes 15 times as long as matrix products; for 9
# positions, the same time.
_FEW_POSITIONS = 4


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A convolution in the axis order of XLA's library for CPUs.

    Attributes:
        lhs_shape: Batch, space, features in.
        rhs_shape: Window, features in per group, features out.
        out_shape: Batch, space, features out.
        options: The arguments of `jax.lax.conv_general_dilated` except the operands and
            the order of axes.
    """

    lhs_shape: tuple[int, ...]
    rhs_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    dtype: np.dtype
    options: dict[str, Any]

    @classmethod
    def from_equation(cls, equation: jex.JaxprEqn) -> "Convolution":
        """Returns the convolution of an equation."""
        options = dict(equation.params)
        axes = _Axes.from_order(options.pop("dimension_numbers"))
        lhs, rhs = (like_of(operand).shape for operand in equation.invars)
        out = like_of(equation.outvars[0])
        return cls(
            tuple(lhs[axis] for axis in axes.lhs),
            tuple(rhs[axis] for axis in axes.rhs),
            tuple(out.shape[axis] for axis in axes.out),
            out.dtype,
            options,
        )

    @property
    def window(self) -> tuple[int, ...]:
        """The sizes of the window."""
        return self.rhs_shape[:-2]

    @property
    def positions(self) -> tuple[int, ...]:
        """The number of positions of the window on each spatial axis."""
        return self.out_shape[1:-1]

    @property
    def groups(self) -> int:
        """The number of groups of features."""
        return self.options["feature_group_count"]

    @property
    def batch_groups(self) -> int:
        """The number of groups of the batch."""
        return self.options["batch_group_count"]

    def of_one_group(self) -> "Convolution":
        """Returns the convolution of each group."""
        batch, *space, features = self.lhs_shape
        *window, features_in, features_out = self.rhs_shape
        parts = self.groups * self.batch_groups
        features_of_group = features_out // parts
        return Convolution(
            (batch // self.batch_groups, *space, features // self.groups),
            (*window, features_in, features_of_group),
            (*self.out_shape[:-1], features_of_group),
            self.dtype,
            {**self.options, "feature_group_count": 1, "batch_group_count": 1},
        )

    def by_library(self, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        """Computes the convolution in the library's layout."""
        rank = len(self.window)
        space = tuple(range(1, rank + 1))
        outer = (0, rank + 1, *space)
        order = lax.ConvDimensionNumbers(outer, (rank + 1, rank, *range(rank)), outer)
        return lax.conv_general_dilated(
            lhs, rhs, dimension_numbers=order, **self.options
        )


Implementation = Callable[[jax.Array, jax.Array], jax.Array]


def in_order_of(
    equation: jex.JaxprEqn, implementation: Implementation
) -> Implementation:
    """Converts an implementation from `Convolution`'s axis order to an equation's."""
    axes = _Axes.from_order(equation.params["dimension_numbers"])

    def convolution(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        out = implementation(lhs.transpose(axes.lhs), rhs.transpose(axes.rhs))
        return out.transpose(np.argsort(axes.out))

    return convolution


@dataclasses.dataclass(frozen=True)
class _Axes:
    """The positions of the axes of `Convolution` in an equation's arrays."""

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    out: tuple[int, ...]

    @classmethod
    def from_order(cls, order: lax.ConvDimensionNumbers) -> "_Axes":
        batch, features, *space = order.lhs_spec
        features_out, features_in, *window = order.rhs_spec
        batch_out, channels, *positions = order.out_spec
        return cls(
            (batch, *space, features),
            (*window, features_in, features_out),
            (batch_out, *positions, channels),
        )


def products_by_tap(this: Convolution, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Computes a sum of matrix products, one for each tap."""
    weights = rhs.reshape(-1, *this.rhs_shape[-2:])
    products = (
        _product(this, covered, weight, axis=covered.ndim - 1)
        for covered, weight in zip(_by_tap(this, lhs), weights, strict=True)
    )
    return sum(products, start=next(products))


def products_by_position(
    this: Convolution, lhs: jax.Array, rhs: jax.Array
) -> jax.Array:
    """Computes a matrix product for each position.

    Gradients of weights have few positions and a window as large as a layer's output.
    Their features are the layer's examples, which come first in its arrays, so nothing
    is moved.
    """
    rows, columns = this.lhs_shape[0], this.rhs_shape[-1]
    flat = jnp.moveaxis(rhs, -2, 0).reshape(-1, columns)
    lhs = _padded_input(this, lhs).swapaxes(0, -1)
    parts = [
        _product(this, covered.reshape(-1, rows), flat, axis=0)
        for covered in _by_position(this, lhs)
    ]
    out = jnp.stack(parts).reshape(*this.positions, rows, columns)
    return jnp.moveaxis(out, -2, 0)


def sums_by_tap(this: Convolution, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Computes a sum of multiples, one for each tap, for groups of one feature."""
    multiplier = this.rhs_shape[-1] // this.lhs_shape[-1]
    weights = exact(rhs).reshape(-1, this.rhs_shape[-1])
    parts = _by_tap(this, jnp.repeat(lhs, multiplier, -1))
    multiples = (
        exact(covered) * weight for covered, weight in zip(parts, weights, strict=True)
    )
    return sum(multiples, start=next(multiples)).astype(this.dtype)


def sums_by_position(this: Convolution, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Computes a sum of products for each position, for groups of one row.

    These are gradients of the weights of depthwise convolutions. Their features are the
    layer's examples. Each example is read once for all positions, while it is in cache.
    """
    multiplier = this.rhs_shape[-1] // this.lhs_shape[0]
    window = tuple(range(len(this.window)))
    examples = _padded_input(this, lhs).swapaxes(0, -1), jnp.moveaxis(rhs, -2, 0)

    def add(sums: jax.Array, example: Any) -> tuple[jax.Array, None]:
        source, factor = map(exact, example)
        sums_of_positions = [
            (covered * factor).sum(window)
            for covered in _by_position(this, jnp.repeat(source, multiplier, -1))
        ]
        return sums + jnp.stack(sums_of_positions), None

    shape = math.prod(this.positions), this.rhs_shape[-1]
    sums = jnp.zeros(shape, jax.eval_shape(exact, rhs).dtype)
    sums, _ = lax.scan(add, sums, examples)
    return sums.reshape(this.out_shape).astype(this.dtype)


def by_group(
    this: Convolution,
    one_group: Implementation,
    lhs: jax.Array,
    rhs: jax.Array,
) -> jax.Array:
    """Computes a convolution for each group of features or of the batch."""
    count = max(this.groups, this.batch_groups)
    axis = -1 if this.groups > 1 else 0
    parts = map(
        one_group,
        jnp.split(lhs, count, axis),
        jnp.split(rhs, count, -1),
    )
    return jnp.concatenate(list(parts), -1)


def _by_tap(this: Convolution, lhs: jax.Array) -> Iterator[jax.Array]:
    """Yields the elements under each tap, in all positions."""
    return slices(
        _padded_input(this, lhs),
        [(0, *start, 0) for start in starts(this.window, this.options["rhs_dilation"])],
        (lhs.shape[0], *this.positions, lhs.shape[-1]),
        (1, *this.options["window_strides"], 1),
    )


def _by_position(this: Convolution, source: jax.Array) -> Iterator[jax.Array]:
    """Yields the elements of a padded `[..., *space, batch]` under each window."""
    outer = source.shape[: -len(this.window) - 1]
    zeros, ones = (0,) * len(outer), (1,) * len(outer)
    return slices(
        source,
        [
            (*zeros, *start, 0)
            for start in starts(this.positions, this.options["window_strides"])
        ],
        (*outer, *this.window, source.shape[-1]),
        (*ones, *this.options["rhs_dilation"], 1),
    )


def _padded_input(this: Convolution, lhs: jax.Array) -> jax.Array:
    return padded(
        lhs,
        [(0, 0), *this.options["padding"], (0, 0)],
        [1, *this.options["lhs_dilation"], 1],
    )


def _product(this: Convolution, a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    return lax.dot_general(
        a,
        b,
        (((axis,), (0,)), ((), ())),
        precision=this.options["precision"],
        preferred_element_type=this.options["preferred_element_type"],
    )


def faster_convolution(
    equation: jex.JaxprEqn,
) -> Callable[..., jax.Array] | None:
    """A rule for `rewritten`: convolutions of all kinds and their gradients."""
    implementation = _implementation(Convolution.from_equation(equation))
    if implementation is None:
        return None
    return in_order_of(equation, implementation)


def _implementation(this: Convolution) -> Implementation | None:
    sizes = (*this.lhs_shape, *this.rhs_shape, *this.out_shape)
    if this.dtype.name not in _FLOATS or not this.window or 0 in sizes:
        return None
    library = this.by_library if this.dtype.name in _OF_LIBRARY else None
    positions, window = math.prod(this.positions), math.prod(this.window)
    is_depthwise = this.groups == this.lhs_shape[-1] > 1
    is_depthwise_gradient = this.batch_groups == this.lhs_shape[0] > 1
    unroll = None
    if is_depthwise and window <= _MOST_TAPS:
        unroll = sums_by_tap
    elif is_depthwise_gradient and positions <= _MOST_TAPS:
        unroll = sums_by_position
    elif this.groups > 1 or this.batch_groups > 1:
        return _by_group(this) or library
    elif window == 1:
        unroll = products_by_tap
    elif positions <= _FEW_POSITIONS and positions < window:
        unroll = products_by_position
    return functools.partial(unroll, this) if unroll else library


def _by_group(this: Convolution) -> Implementation | None:
    if max(this.groups, this.batch_groups) > _MOST_GROUPS:
        return None
    one_group = _implementation(this.of_one_group())
    if one_group is None:
        return None
    return functools.partial(by_group, this, one_group)
