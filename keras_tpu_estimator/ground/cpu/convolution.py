"""What a convolution computes, whatever the order of its operands' axes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core as jex

from keras_tpu_estimator.ground.cpu.rewriting import like_of


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A convolution in the axis order of XLA's library for CPUs.

    Attributes:
        lhs_shape: Batch, space, features in.
        rhs_shape: Window, features in for each group, features out.
        out_shape: Batch, space, features out.
        options: The arguments of `jax.lax.conv_general_dilated` apart from the
            operands and the order of axes.
    """

    lhs_shape: tuple[int, ...]
    rhs_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    dtype: np.dtype
    options: dict[str, Any]

    @classmethod
    def of(cls, equation: jex.JaxprEqn) -> "Convolution":
        """The convolution that an equation computes."""
        options = dict(equation.params)
        axes = _Axes.of(options.pop("dimension_numbers"))
        lhs, rhs = (like_of(each).shape for each in equation.invars)
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
        """The window's sizes."""
        return self.rhs_shape[:-2]

    @property
    def positions(self) -> tuple[int, ...]:
        """How many positions the window has on each axis of space."""
        return self.out_shape[1:-1]

    @property
    def groups(self) -> int:
        """Into how many groups features are divided."""
        return self.options["feature_group_count"]

    @property
    def batch_groups(self) -> int:
        """Into how many groups the batch is divided."""
        return self.options["batch_group_count"]

    def of_one_group(self) -> "Convolution":
        """The convolution that each group is."""
        batch, *space, features = self.lhs_shape
        *window, features_in, features_out = self.rhs_shape
        parts = self.groups * self.batch_groups
        each = features_out // parts
        return Convolution(
            (batch // self.batch_groups, *space, features // self.groups),
            (*window, features_in, each),
            (*self.out_shape[:-1], each),
            self.dtype,
            {**self.options, "feature_group_count": 1, "batch_group_count": 1},
        )

    def by_library(self, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        """The same convolution, laid out for the library."""
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
    """An implementation for operands whose axes stand as in an equation.

    Args:
        implementation: Takes operands and gives a result whose axes stand as
            in `Convolution`.
    """
    axes = _Axes.of(equation.params["dimension_numbers"])

    def convolution(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        out = implementation(lhs.transpose(axes.lhs), rhs.transpose(axes.rhs))
        return out.transpose(np.argsort(axes.out))

    return convolution


@dataclasses.dataclass(frozen=True)
class _Axes:
    """Where the axes of `Convolution` stand in an equation's arrays."""

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    out: tuple[int, ...]

    @classmethod
    def of(cls, order: lax.ConvDimensionNumbers) -> "_Axes":
        batch, features, *space = order.lhs_spec
        features_out, features_in, *window = order.rhs_spec
        batch_out, channels, *positions = order.out_spec
        return cls(
            (batch, *space, features),
            (*window, features_in, features_out),
            (batch_out, *positions, channels),
        )
