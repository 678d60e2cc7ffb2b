"""What an array is like, as devices have it, where there is no array."""

from collections.abc import Sequence
from typing import Any

import jax


def abstract_array(
    shape: Sequence[Any], dtype: Any, place: jax.sharding.Sharding | None = None
) -> jax.ShapeDtypeStruct:
    """A shape and a dtype, which is as wide as devices have it.

    JAX makes an array of 64 bits one of 32; of what is said in its place, newer
    releases warn.

    Example:

    >>> abstract_array([2, 3], "int64")
    ShapeDtypeStruct(shape=(2, 3), dtype=int32)
    """
    narrow = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(tuple(shape), narrow, sharding=place)
