"""Convolutions in pieces: one for each tap, position, or group.

A tap is an element of the window. All functions take and return arrays whose
axes stand as in `Convolution`.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from keras_tpu_estimator.ground.cpu.convolution import Convolution, Implementation
from keras_tpu_estimator.ground.cpu.windows import exact, padded, slices, starts


def products_by_tap(this: Convolution, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """A sum of matrix products, one for each tap."""
    weights = rhs.reshape(-1, *this.rhs_shape[-2:])
    products = (
        _product(this, covered, weight, axis=covered.ndim - 1)
        for covered, weight in zip(_by_tap(this, lhs), weights, strict=True)
    )
    return sum(products, start=next(products))


def products_by_position(
    this: Convolution, lhs: jax.Array, rhs: jax.Array
) -> jax.Array:
    """A matrix product for each position.

    Gradients by weights have few positions and a window as large as a layer's
    output. Their features are the layer's examples, which come first in its
    arrays: nothing is moved.
    """
    rows, columns = this.lhs_shape[0], this.rhs_shape[-1]
    flat = jnp.moveaxis(rhs, -2, 0).reshape(-1, columns)
    lhs = _padded(this, lhs).swapaxes(0, -1)
    parts = [
        _product(this, covered.reshape(-1, rows), flat, axis=0)
        for covered in _by_position(this, lhs)
    ]
    out = jnp.stack(parts).reshape(*this.positions, rows, columns)
    return jnp.moveaxis(out, -2, 0)


def sums_by_tap(this: Convolution, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """A sum of multiples, one for each tap, for groups of one feature."""
    each = this.rhs_shape[-1] // this.lhs_shape[-1]
    weights = exact(rhs).reshape(-1, this.rhs_shape[-1])
    parts = _by_tap(this, jnp.repeat(lhs, each, -1))
    multiples = (
        exact(covered) * weight for covered, weight in zip(parts, weights, strict=True)
    )
    return sum(multiples, start=next(multiples)).astype(this.dtype)


def sums_by_position(this: Convolution, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """A sum of products for each position, for groups of one row.

    Gradients by the weights of depthwise convolutions are such. Their features
    are the layer's examples: one after another, each is read once for all
    positions, while it is near.
    """
    each = this.rhs_shape[-1] // this.lhs_shape[0]
    window = tuple(range(len(this.window)))
    examples = _padded(this, lhs).swapaxes(0, -1), jnp.moveaxis(rhs, -2, 0)

    def add(sums: jax.Array, example: Any) -> tuple[jax.Array, None]:
        source, factor = map(exact, example)
        found = [
            (covered * factor).sum(window)
            for covered in _by_position(this, jnp.repeat(source, each, -1))
        ]
        return sums + jnp.stack(found), None

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
    """A convolution for each group, of features or of the batch."""
    count = max(this.groups, this.batch_groups)
    axis = -1 if this.groups > 1 else 0
    parts = map(
        one_group,
        jnp.split(lhs, count, axis),
        jnp.split(rhs, count, -1),
    )
    return jnp.concatenate(list(parts), -1)


def _by_tap(this: Convolution, lhs: jax.Array) -> Iterator[jax.Array]:
    """What each tap covers, in all positions."""
    return slices(
        _padded(this, lhs),
        [(0, *start, 0) for start in starts(this.window, this.options["rhs_dilation"])],
        (lhs.shape[0], *this.positions, lhs.shape[-1]),
        (1, *this.options["window_strides"], 1),
    )


def _by_position(this: Convolution, source: jax.Array) -> Iterator[jax.Array]:
    """What the window covers in each position.

    Args:
        source: Padded, of shape `[..., *space, batch]`.
    """
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


def _padded(this: Convolution, lhs: jax.Array) -> jax.Array:
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
