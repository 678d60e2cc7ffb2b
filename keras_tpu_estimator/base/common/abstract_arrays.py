"""Shapes and dtypes of arrays on devices, without the arrays."""

from collections.abc import Sequence
from typing import Any

import jax


def abstract_array(
    shape: Sequence[Any], dtype: Any, place: jax.sharding.Sharding | None = None
) -> jax.ShapeDtypeStruct:
    """Returns a shape and a dtype, converted to the width of the devices.

    JAX converts 64-bit dtypes to 32 bits, with a warning in newer releases.

    Example:

    >>> abstract_array([2, 3], "int64")
    ShapeDtypeStruct(shape=(2, 3), dtype=int32)
    """
    narrow = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(tuple(shape), narrow, sharding=place)
