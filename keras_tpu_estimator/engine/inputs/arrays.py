"""What an `input_fn` gives, as nests of NumPy arrays."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.ground.base.types import Nest


def as_arrays(nest: Any) -> Nest:
    """A nest of what NumPy understands as one of its arrays.

    Args:
        nest: Any nest. Mappings that are no dicts, such as those of tokenizers,
            become dicts.

    Returns:
        A nest of arrays, whose bytes are in the order of this machine.

    Raises:
        ValueError: The keys of a dict have no order, or values are masked.

    Example:

    >>> import collections
    >>> as_arrays(collections.UserDict(x=[np.array([1, 2], ">i4")]))
    {'x': [array([1, 2], dtype=int32)]}
    """

    def one(leaf: Any) -> Nest:
        if isinstance(leaf, Mapping):
            return as_arrays(dict(leaf))
        if isinstance(leaf, np.ma.MaskedArray):
            _check_not_masked(leaf)
        array = np.asarray(leaf)
        if array.dtype.isnative:
            return array
        return array.astype(array.dtype.newbyteorder("="))

    try:
        return jax.tree.map(one, nest)
    except ValueError as error:
        _check_keys(nest, error)
        raise


def _check_not_masked(array: np.ma.MaskedArray) -> None:
    masked = int(np.ma.getmaskarray(array).sum())
    if masked:
        raise ValueError(
            "An array of `input_fn` should have all its values, as devices "
            f"know of no masks. Received one of shape {array.shape} with "
            f"{masked} of {array.size} values masked. Fill them by "
            "array.filled(...), and pass the mask as another feature if it is "
            "needed."
        )


def _check_keys(nest: Any, cause: Exception) -> None:
    """Checks that the keys of each dict can be sorted, as JAX sorts them."""
    if isinstance(nest, list | tuple):
        for each in nest:
            _check_keys(each, cause)
    if not isinstance(nest, Mapping):
        return
    try:
        sorted(nest)
    except TypeError:
        kinds = sorted({type(key).__name__ for key in nest})
        raise ValueError(
            "The keys of a dict that `input_fn` gives should be of one type. "
            f"Received keys of {', '.join(kinds)}: {list(nest)}. Use strings."
        ) from cause
    for each in nest.values():
        _check_keys(each, cause)
