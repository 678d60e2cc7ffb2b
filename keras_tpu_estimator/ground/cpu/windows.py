"""What a window covers that moves over an array: slices, one for each tap."""

import itertools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def padded(
    x: jax.Array,
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
    value: float = 0,
) -> jax.Array:
    """Pads an array; negative padding crops it, behind any dilation."""
    widths = [
        (low, high, apart - 1)
        for (low, high), apart in zip(padding, dilation or [1] * x.ndim, strict=True)
    ]
    if not any(map(any, widths)):
        return x
    return lax.pad(x, np.asarray(value, x.dtype), widths)


def starts(
    count: Sequence[int], steps: Sequence[int] | None = None
) -> list[tuple[int, ...]]:
    """Where slices start that lie some steps apart, the last axis first."""
    each = [
        [index * step for index in range(number)]
        for number, step in zip(count, steps or [1] * len(count), strict=True)
    ]
    return list(itertools.product(*each))


def slices(
    x: jax.Array,
    at: Sequence[Sequence[int]],
    sizes: Sequence[int],
    apart: Sequence[int] | None = None,
) -> Iterator[jax.Array]:
    """One slice for each start: so many elements of each axis, so far apart."""
    apart = apart or [1] * x.ndim
    for start in at:
        stop = [
            first + (size - 1) * step + 1
            for first, size, step in zip(start, sizes, apart, strict=True)
        ]
        yield lax.slice(x, start, stop, apart)


def exact(x: jax.Array) -> jax.Array:
    """An array in the dtype of its sums: of 32 bits, at least."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
