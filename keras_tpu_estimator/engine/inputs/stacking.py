"""Stacks: the batches of several steps in one array, mostly in reused memory."""

import collections
import contextlib
import dataclasses
import math
import operator
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Self

import jax
import numpy as np

from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.engine.inputs.batch import Batch, Tensors
from keras_tpu_estimator.engine.inputs.unbatched import batch_size

# Programs on a CPU read arrays with this alignment in place.
_ALIGNMENT = 64
# Copying fewer large steps takes longer than running a program for each.
_FEW = 8
# The maximum number of free bytes of sizes that are not requested.
_MOST_FREE = 2**28
# Arrays of up to the first number of bytes use memory of earlier calls, of which up to
# the second number is kept.
_SMALL = 2**22
_MOST_SMALL = 2**26


@dataclasses.dataclass(frozen=True)
class Stack(Tensors):
    """The batches of several steps, of equal shapes, in one array for each tensor.

    A loop runs a stack in one device program. The arrays have the shape `[steps, batch,
    ...]`, and `Unbatched` ones `[steps, ...]`.

    Attributes:
        may_stay: Whether the arrays will not change.
        memory: Features and labels with room for more steps, which contain these;
            or `None`.
        first_row: The index of the first of these steps in `memory`.
        is_part: Whether each host has another part of the steps.
        part_sizes: The number of examples of each host if parts are padded to one
            size. Defaults to none.
    """

    may_stay: bool = False
    memory: tuple[Features, Labels] | None = dataclasses.field(default=None, repr=False)
    first_row: int = 0
    is_part: bool = False
    part_sizes: tuple[int, ...] = ()

    @classmethod
    def from_batch(cls, batch: Batch, steps: int = 1, may_stay: bool = False) -> Self:
        """Returns a batch repeated without a copy, whose arrays `may_stay`."""

        def repeated(leaf: np.ndarray) -> np.ndarray:
            if steps == 1:
                return leaf[None]
            return np.broadcast_to(leaf, (steps, *leaf.shape))

        features, labels = jax.tree.map(repeated, (batch.features, batch.labels))
        return cls(features, labels, may_stay)

    @classmethod
    def joined(cls, stacks: Sequence["Stack"]) -> Self:
        """Concatenates stacks."""
        tensors = [stack.tensors for stack in stacks]
        return cls(*jax.tree.map(lambda *arrays: np.concatenate(arrays), *tensors))

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(jax.tree.leaves(self.features)[0])

    @property
    def examples(self) -> int:
        """The number of examples in one step."""
        return batch_size(self.tensors, axis=1)

    @property
    def shapes(self) -> Any:
        """A key that is equal for steps that can be stacked together."""
        leaves, structure = jax.tree.flatten((self.features, self.labels))
        return structure, *[leaf.shape[1:] for leaf in leaves]

    @property
    def step_bytes(self) -> int:
        """The bytes of one step."""
        leaves = jax.tree.leaves((self.features, self.labels))
        return sum([leaf[0].nbytes for leaf in leaves])

    def step(self, index: int) -> Batch:
        """Returns one of the steps."""
        return Batch(*jax.tree.map(operator.itemgetter(index), self.tensors))

    def split(self, steps: int) -> tuple["Stack", "Stack"]:
        """Returns the first `steps` steps, and the others."""
        first = self._rows(slice(steps), self.memory or self.tensors)
        return first, self._rows(slice(steps, None), None)

    def padded_to(self, steps: int) -> PyTree:
        """Returns features and labels padded to a number of steps with any values."""
        if self.steps == steps:
            return self.tensors
        if self.memory and len(jax.tree.leaves(self.memory)[0]) >= steps:
            return jax.tree.map(lambda a: a[:steps], self.memory)

        def padded(leaf: np.ndarray) -> np.ndarray:
            longer = np.zeros((steps, *leaf.shape[1:]), leaf.dtype)
            longer[: self.steps] = leaf
            return longer

        return jax.tree.map(padded, self.tensors)

    def _rows(self, rows: slice, memory: tuple[Features, Labels] | None) -> "Stack":
        features, labels = jax.tree.map(operator.itemgetter(rows), self.tensors)
        return dataclasses.replace(
            self, features=features, labels=labels, memory=memory, first_row=0
        )


@dataclasses.dataclass(frozen=True)
class StackSize:
    """The size of stacks of steps.

    `target` is the number of bytes of a stack of small steps. `most` is the maximum
    number of bytes of eight steps, by default `target`; larger steps are not stacked.
    """

    target: float = math.inf
    most: float | None = None

    def steps(self, step_bytes: int) -> float:
        """Returns the maximum number of steps of a size in a stack."""
        size = max(step_bytes, 1)
        most = self.target if self.most is None else self.most
        return 1 if most / size < _FEW else max(self.target / size, _FEW)


class Buffers:
    """Memory that is reused when no array or view refers to it.

    New memory is slow to write, because the system maps it page by page. Small arrays
    use the memory of all calls in this process, large ones that of this object.
    """

    def __init__(self) -> None:
        self._large = _FreeMemory(_MOST_FREE)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Returns an array with arbitrary values."""
        size = math.prod(shape) * dtype.itemsize
        free = _small if size <= _SMALL else self._large
        memory = free.take(size + _ALIGNMENT)
        start = -memory.ctypes.data % _ALIGNMENT
        # Every view refers to this array, because a `memoryview` ends NumPy's
        # search for the owner of the memory.
        owner = np.frombuffer(memory.data[start : start + size], np.uint8)
        weakref.finalize(owner, free.put_back, memory).atexit = False
        return owner.view(dtype).reshape(shape)


class _FreeMemory:
    """Memory that no array refers to, for all threads.

    At most `most` free bytes of sizes that are not requested are kept.
    """

    def __init__(self, most: int):
        self._most = most
        self._lock = threading.Lock()
        # Finalizers append at any time, also while their thread has the lock.
        self._returned: collections.deque[np.ndarray] = collections.deque()
        # The oldest is first.
        self._free: list[np.ndarray] = []

    def take(self, size: int) -> np.ndarray:
        """Returns free memory of a size, or new memory."""
        with self._lock:
            free = self._free
            while self._returned:
                free.append(self._returned.popleft())
            # The newest may be in a cache.
            newest_first = reversed(range(len(free)))
            index = next((n for n in newest_first if free[n].nbytes == size), None)
            if index is not None:
                return free.pop(index)
            # Memory of other sizes may never be used again.
            while sum(memory.nbytes for memory in free) > self._most:
                free.pop(0)
        return np.empty(size, "uint8")

    def put_back(self, memory: np.ndarray) -> None:
        """Keeps memory for a later array."""
        self._returned.append(memory)


# New memory for each call would take as long as the predictions of a small model.
_small = _FreeMemory(_MOST_SMALL)


class StackBuilder:
    """Memory for a stack, into which steps of equal shapes are copied.

    `capacity` is the number of steps to allocate memory for, and defaults to `steps`.
    """

    def __init__(self, buffers: Buffers, like: Stack, steps: int, capacity: int = 0):
        leaves, self._structure = jax.tree.flatten(like.tensors)
        rows = max(steps, capacity)
        self._leaves = [
            buffers.empty((rows, *leaf.shape[1:]), leaf.dtype) for leaf in leaves
        ]
        self._memory = jax.tree.unflatten(self._structure, self._leaves)
        self.steps = 0

    def add(self, stack: Stack) -> None:
        """Copies some steps."""
        start, self.steps = self.steps, self.steps + stack.steps
        leaves = jax.tree.leaves((stack.features, stack.labels))
        for memory, leaf in zip(self._leaves, leaves, strict=True):
            memory[start : self.steps] = leaf

    @property
    def is_full(self) -> bool:
        """Whether there is no memory for more steps."""
        return self.steps == len(self._leaves[0])

    def added(self, stack: Stack) -> Stack:
        """Copies some steps, and returns the copy, with its rows in the memory."""
        first_row = self.steps
        self.add(stack)
        return self._rows(first_row)

    def clear_unused(self) -> None:
        """Clears old values, about which a conversion to float32 would warn."""
        for leaf in self._leaves:
            if leaf.dtype == np.float64:
                leaf[self.steps :] = 0

    def built(self) -> Stack:
        """Returns the copied steps."""
        self.clear_unused()
        return self._rows(0)

    def _rows(self, first: int) -> Stack:
        leaves = [leaf[first : self.steps] for leaf in self._leaves]
        features, labels = jax.tree.unflatten(self._structure, leaves)
        return Stack(features, labels, True, self._memory, first)


def shapes_and_dtypes(features: Features) -> Any:
    """Returns a key that is equal for features of one compiled program."""
    leaves, structure = jax.tree.flatten(features)
    return structure, *[(leaf.shape, leaf.dtype) for leaf in leaves]


def is_ready(stack: Stack) -> bool:
    """Returns whether programs on a CPU can read steps in place."""
    return stack.may_stay and all(
        leaf.flags.c_contiguous and leaf.ctypes.data % _ALIGNMENT == 0
        for leaf in jax.tree.leaves(stack.tensors)
    )


class Stacker:
    """A reader that combines pieces, which are short stacks, into longer stacks.

    A piece that may not stay is copied before the next one is requested. `capacity` is
    the maximum number of steps in a stack, and the number to allocate memory for within
    `stack_size`.
    """

    def __init__(
        self,
        pieces: Iterator[Stack],
        stack_size: StackSize,
        capacity: int | None = None,
    ):
        self._pieces = pieces
        self._max_bytes = stack_size
        self._capacity = capacity
        # Pieces that come before the others.
        self._put_back: collections.deque[Stack] = collections.deque()
        self._buffers = Buffers()
        # The shapes and dtypes of steps that are stored in one stack, and the number of
        # them in a stack.
        self._together: tuple[Any, int] | None = None
        self._filling: StackBuilder | None = None

    def take(self, steps: int) -> Stack | None:
        """Returns up to `steps` aligned steps of equal shapes, or `None` at the end."""
        piece = self._next()
        if piece is None:
            return None
        if self._together is not None and steps == 1:
            piece = self._at_most(1, piece)
            if shapes_and_dtypes(piece.features) == self._together[0]:
                return self._filled(piece, self._together[1])
        size = piece.step_bytes, self._max_bytes
        steps = capacity = even_share(steps, *size)
        if self._capacity is not None:
            capacity = even_share(self._capacity, *size)
            steps = min(steps, capacity)
        shapes = piece.shapes
        piece = self._at_most(steps, piece)
        if is_ready(piece) and (piece.steps == steps or not self._has_more(shapes)):
            return piece
        builder = StackBuilder(self._buffers, piece, steps, capacity)
        builder.add(piece)
        while builder.steps < steps and self._has_more(shapes):
            following = self._next()
            if following is not None:
                builder.add(self._at_most(steps - builder.steps, following))
        return builder.built()

    def keep_together(self, like: Stack, steps: int) -> None:
        """Stores steps that are taken one by one in stacks of `steps`, without labels.

        A run of several steps uses them without a copy. Only steps with features as in
        `like` are stored this way.
        """
        self._together = shapes_and_dtypes(like.features), steps

    def peek(self) -> Stack | None:
        """Returns the next piece, of at least one step, without removing it."""
        piece = self._next()
        if piece is not None:
            self._put_back.appendleft(piece)
        return piece

    def skip(self, steps: int) -> int:
        """Skips up to `steps` steps, and returns the number of skipped ones."""
        unskipped = steps
        while unskipped and (piece := self._next()) is not None:
            unskipped -= self._at_most(unskipped, piece).steps
        return steps - unskipped

    def close(self) -> None:
        """Closes the user's generators, unless a thread is inside them."""
        if hasattr(self._pieces, "close"):
            with contextlib.suppress(ValueError):
                self._pieces.close()
        self._pieces = iter(())
        self._put_back.clear()

    def _filled(self, piece: Stack, steps: int) -> Stack:
        """Copies one step into the stack that is being filled."""
        piece = Stack(piece.features, None)
        if self._filling is None or self._filling.is_full:
            self._filling = StackBuilder(self._buffers, piece, steps)
            self._filling.clear_unused()
        return self._filling.added(piece)

    def _has_more(self, shapes: Any) -> bool:
        """Returns whether the next piece has these shapes."""
        following = self.peek()
        if following is None:
            return False
        return bool(following.shapes == shapes)

    def _at_most(self, steps: int, piece: Stack) -> Stack:
        """Returns the first steps of a piece, and puts back the others."""
        if piece.steps > steps:
            piece, later = piece.split(steps)
            self._put_back.appendleft(later)
        return piece

    def _next(self) -> Stack | None:
        if self._put_back:
            return self._put_back.popleft()
        return next(self._pieces, None)


def even_share(steps: int, step_bytes: int, stack_size: StackSize) -> int:
    """Returns the length of a stack, so that all stacks have equal lengths.

    Equal lengths need only one compiled program, and no piece is split. If no length
    divides `steps`, lengths are about equal. Large steps are not stacked.
    """
    most = int(min(stack_size.steps(step_bytes), steps))
    times = -(-steps // most)
    few_more = range(times, times + times // 3 + 1)
    equal = (t for t in few_more if steps % t == 0)
    return -(-steps // next(equal, times))
