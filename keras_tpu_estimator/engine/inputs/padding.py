"""Filling a last, smaller batch up to the size of the others."""

import numpy as np

from keras_tpu_estimator.engine.inputs.unbatched import batch_size, map_batched
from keras_tpu_estimator.ground.base.types import Nest


def pad(nest: Nest, size: int) -> tuple[Nest, np.ndarray]:
    """Appends zeros to the batch axis of every array that has one.

    Args:
        nest: Nest of NumPy arrays, batch first, and of `Unbatched` ones.
        size: The batch size to reach.

    Returns:
        The nest, and booleans of shape `[size]` that tell padding.

    Example:

    >>> import numpy as np
    >>> pad(np.array([1, 2]), 3)
    (array([1, 2, 0]), array([False, False,  True]))
    """
    present = batch_size(nest)
    is_padding = np.arange(size) >= present
    if present == size:
        return nest, is_padding

    def padded(leaf: np.ndarray) -> np.ndarray:
        zeros = np.zeros((size - present, *leaf.shape[1:]), leaf.dtype)
        return np.concatenate([leaf, zeros])

    return map_batched(padded, nest), is_padding
