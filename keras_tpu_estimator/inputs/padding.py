"""Filling a last, smaller batch up to the size of the others."""

from typing import Any

import jax
import numpy as np


def pad(nest: Any, size: int) -> tuple[Any, np.ndarray]:
    """Appends zeros to the first axis of every array.

    Args:
        nest: Nest of NumPy arrays with the batch as their first axis.
        size: The batch size to reach.

    Returns:
        The nest, and booleans of shape `[size]` that tell padding.

    Example:

    >>> import numpy as np
    >>> pad(np.array([1, 2]), 3)
    (array([1, 2, 0]), array([False, False,  True]))
    """
    present = jax.tree.leaves(nest)[0].shape[0]
    is_padding = np.arange(size) >= present
    if present == size:
        return nest, is_padding

    def padded(leaf: np.ndarray) -> np.ndarray:
        zeros = np.zeros((size - present, *leaf.shape[1:]), leaf.dtype)
        return np.concatenate([leaf, zeros])

    return jax.tree.map(padded, nest), is_padding
