"""Steps copied one after the other into memory that is used again."""

import math
import weakref

import jax
import numpy as np

from keras_tpu_estimator.engine.inputs.batch import Batch

# A CPU's programs read arrays where they are if they begin at such an address.
_ALIGNMENT = 64
# Bytes that are kept where nothing of their size is wanted.
_MOST_FREE = 2**28


class Buffers:
    """Memory that is used again once nobody holds an array in it.

    New memory is slow to write: the system makes it page by page.

    Example:

    >>> buffers = Buffers()
    >>> array = buffers.empty((2, 3), np.dtype("float32"))
    >>> address = array.ctypes.data
    >>> rows = array[1:]
    >>> del array
    >>> buffers.empty((6,), np.dtype("float32")).ctypes.data == address
    False
    >>> del rows
    >>> buffers.empty((6,), np.dtype("float32")).ctypes.data == address
    True
    """

    def __init__(self) -> None:
        # The oldest first. What is given back is added at any time.
        self._free: list[np.ndarray] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array whose values are to be set.

        Args:
            shape: Its shape.
            dtype: Its dtype.
        """
        size = math.prod(shape) * dtype.itemsize
        memory = self._taken(size + _ALIGNMENT)
        start = -memory.ctypes.data % _ALIGNMENT
        # Every view holds this array: NumPy looks no further than a
        # `memoryview` for what owns the memory.
        owner = np.frombuffer(memory.data[start : start + size], np.uint8)
        weakref.finalize(owner, self._free.append, memory).atexit = False
        return owner.view(dtype).reshape(shape)

    def _taken(self, size: int) -> np.ndarray:
        """Free memory of a size, or else new one."""
        free = self._free
        # The newest, which may be in a cache.
        places = reversed(range(len(free)))
        index = next((n for n in places if free[n].nbytes == size), None)
        memory = np.empty(size, "uint8") if index is None else free.pop(index)
        # That of other sizes may never be wanted again.
        while sum(each.nbytes for each in free) > _MOST_FREE:
            free.pop(0)
        return memory


class Stack:
    """Steps of equal shapes, copied one after the other.

    Args:
        buffers: Where to.
        like: Some steps.
        steps: How many there will be, at most.

    Attributes:
        steps: How many there are.
    """

    def __init__(self, buffers: Buffers, like: Batch, steps: int):
        leaves, self._structure = jax.tree.flatten((like.features, like.labels))
        self._leaves = [
            buffers.empty((steps, *leaf.shape[1:]), leaf.dtype)
            for leaf in leaves
        ]
        self.steps = 0

    def add(self, batch: Batch) -> None:
        """Copies some steps."""
        start, self.steps = self.steps, self.steps + batch.steps
        leaves = jax.tree.leaves((batch.features, batch.labels))
        for own, leaf in zip(self._leaves, leaves, strict=True):
            own[start : self.steps] = leaf

    def batch(self) -> Batch:
        """All of them."""
        leaves = [leaf[: self.steps] for leaf in self._leaves]
        features, labels = jax.tree.unflatten(self._structure, leaves)
        return Batch(features, labels, may_stay=True)


def is_ready(batch: Batch) -> bool:
    """Whether programs can read a batch where it is."""
    return batch.may_stay and all(
        leaf.flags.c_contiguous and leaf.ctypes.data % _ALIGNMENT == 0
        for leaf in jax.tree.leaves((batch.features, batch.labels))
    )
