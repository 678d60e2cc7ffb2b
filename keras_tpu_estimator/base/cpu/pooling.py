"""Pooling over all windows at once, one tap at a time.

A tap is an element of the window. XLA computes each element of the result separately,
in a loop over its window.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

# More taps would take long to compile. The number of a tap fits into 8 bits.
_MOST_TAPS = 64
# JAX's padding value, by the primitive that selects.
_WORST = {"ge": -float("inf"), "le": float("inf")}


def compute_once(
    function: Callable[..., jax.Array], *args: jax.Array
) -> tuple[jax.Array, ...]:
    """Computes a function once, and returns its result and its non-empty arguments.

    XLA fuses cheap operations into each operation that reads them, even across
    optimization barriers, and repeats them there for each read: 49 times in a window of
    7 x 7. It does not fuse the results of a branch. The first argument has floats.
    """
    number = args[0].ravel()[0]
    # This is always true, but XLA cannot know.
    is_one = (number == number) | jnp.isnan(number)  # noqa: PLR0124
    out = jax.eval_shape(function, *args)
    return lax.cond(
        is_one,
        lambda *args: (function(*args), *args),
        lambda *args: tuple(jnp.zeros(x.shape, x.dtype) for x in (out, *args)),
        *args,
    )


def faster_pooling(
    operator: Callable[[jax.Array, jax.Array], jax.Array],
    neutral: float,
    dtypes: Sequence[str],
) -> Callable[[jex.JaxprEqn], Callable[..., jax.Array] | None]:
    """Makes a rule for `rewritten` for a kind of `lax.reduce_window`.

    Args:
        neutral: The operator's neutral element, which is the padding.
        dtypes: The names of the dtypes for which the result equals XLA's.
    """

    def rule(equation: jex.JaxprEqn) -> Callable[..., jax.Array] | None:
        p = equation.params
        out = like_of(equation.outvars[0])
        if out.dtype.name not in dtypes or not _is_small(p):
            return None

        def pool(x: jax.Array) -> jax.Array:
            covered = slices(
                padded(x, p["padding"], p["base_dilation"], neutral),
                starts(p["window_dimensions"], p["window_dilation"]),
                out.shape,
                p["window_strides"],
            )
            return functools.reduce(operator, covered)

        return pool

    return rule


def faster_selection(
    equation: jex.JaxprEqn,
) -> Callable[..., jax.Array] | None:
    """A rule for `rewritten`: the gradient of max or min pooling."""
    p = equation.params
    is_known = p["select_prim"].name in _WORST
    is_cropped = any(width < 0 for pair in p["padding"] for width in pair)
    is_empty = 0 in like_of(equation.invars[0]).shape
    if not is_known or is_cropped or is_empty or not _is_small(p):
        return None

    def scatter(source: jax.Array, operand: jax.Array) -> jax.Array:
        select = functools.partial(_selected, p, operand=operand)
        selected, source = compute_once(select, source)
        return _scattered(p, source, selected, operand.shape)

    return scatter


def _is_small(params: Mapping[str, Any]) -> bool:
    taps = math.prod(params["window_dimensions"])
    return 1 < taps <= _MOST_TAPS


def _selected(
    params: Mapping[str, Any], source: jax.Array, operand: jax.Array
) -> jax.Array:
    """Returns the number of the tap that each window selects, the first of the best."""
    select = params["select_prim"]
    values = slices(
        padded(operand, params["padding"], value=_WORST[select.name]),
        starts(params["window_dimensions"]),
        source.shape,
        params["window_strides"],
    )
    best = next(values)
    selected = jnp.zeros(source.shape, jnp.int8)
    for number, value in enumerate(values, 1):
        stays = select.bind(best, value)
        best = jnp.where(stays, best, value)
        selected = jnp.where(stays, selected, jnp.int8(number))
    return selected


def _scattered(
    params: Mapping[str, Any],
    source: jax.Array,
    selected: jax.Array,
    shape: Sequence[int],
) -> jax.Array:
    """Returns the sum of the values of all windows that selected each element.

    The padded operand is divided into blocks as large as the strides. In block b, the
    window b - q, for a few shifts q, has its taps from q * strides on. Sums are made in
    the order of the windows, as in XLA.
    """
    window, strides = params["window_dimensions"], params["window_strides"]
    lows = [low for low, _ in params["padding"]]
    shifts = [-(-w // s) for w, s in zip(window, strides, strict=True)]
    blocks = [
        -(-(low + size) // s) for low, size, s in zip(lows, shape, strides, strict=True)
    ]
    around = [
        (count - 1, max(0, total - size))
        for count, total, size in zip(shifts, blocks, source.shape, strict=True)
    ]
    at = starts(shifts)
    parts = zip(
        reversed(at),
        slices(padded(source, around), at, blocks),
        slices(padded(selected, around), at, blocks),
        strict=True,
    )
    values = [exact(part) for part in _of_elements(parts, window, strides)]
    total = sum(values[1:], start=values[0]).astype(source.dtype)
    total = total.reshape([count * s for count, s in zip(blocks, strides, strict=True)])
    (out,) = slices(total, [lows], shape)
    return out


def _of_elements(
    parts: Iterable[tuple[Sequence[int], jax.Array, jax.Array]],
    window: Sequence[int],
    strides: Sequence[int],
) -> Iterator[jax.Array]:
    """Yields the windows' values at the elements of blocks that they selected.

    The arrays have two axes for each original one: the block, and the position in it.
    Each of the parts consists of a shift, the windows' values in all blocks, and the
    numbers of the taps that they selected.
    """
    numbers = np.arange(math.prod(window)).reshape(window)
    for shift, part, selected in parts:
        taps = [slice(q * s, (q + 1) * s) for q, s in zip(shift, strides, strict=True)]
        selected_taps = numbers[tuple(taps)]
        outside = [
            (0, s - size) for s, size in zip(strides, selected_taps.shape, strict=True)
        ]
        # No window has a tap -1.
        selected_taps = np.pad(selected_taps, outside, constant_values=-1).astype(
            np.int8
        )
        selected_taps = selected_taps.reshape([n for s in strides for n in (1, s)])
        wide = [n for size in part.shape for n in (size, 1)]
        is_selected = selected.reshape(wide) == selected_taps
        yield jnp.where(is_selected, part.reshape(wide), 0)
