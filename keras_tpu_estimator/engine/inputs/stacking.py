"""Stacks of steps, of any number, in reused memory."""

import collections
import contextlib
import dataclasses
import math
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.base.common.types import Features
from keras_tpu_estimator.engine.inputs.batch import StackedSteps

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
class StackSize:
    """The size of stacks of steps.

    `wanted` is the number of bytes of a stack of small steps. `most` is the maximum
    number of bytes of eight steps, by default `wanted`; larger steps are not stacked.
    """

    wanted: float = math.inf
    most: float | None = None

    def steps(self, step_bytes: int) -> float:
        """Returns the maximum number of steps of a size in a stack."""
        size = max(step_bytes, 1)
        most = self.wanted if self.most is None else self.most
        return 1 if most / size < _FEW else max(self.wanted / size, _FEW)


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
            places = reversed(range(len(free)))
            index = next((n for n in places if free[n].nbytes == size), None)
            if index is not None:
                return free.pop(index)
            # Memory of other sizes may never be used again.
            while sum(each.nbytes for each in free) > self._most:
                free.pop(0)
        return np.empty(size, "uint8")

    def put_back(self, memory: np.ndarray) -> None:
        """Keeps memory for a later array."""
        self._returned.append(memory)


# New memory for each call would take as long as the predictions of a small model.
_small = _FreeMemory(_MOST_SMALL)


class Stack:
    """Copies of steps of equal shapes in one array for each tensor.

    `room` is the number of steps to allocate memory for, and defaults to `steps`.
    """

    def __init__(
        self,
        buffers: Buffers,
        like: StackedSteps,
        steps: int,
        room: int = 0,
    ):
        leaves, self._structure = jax.tree.flatten((like.features, like.labels))
        rows = max(steps, room)
        self._leaves = [
            buffers.empty((rows, *leaf.shape[1:]), leaf.dtype) for leaf in leaves
        ]
        self._room = jax.tree.unflatten(self._structure, self._leaves)
        self.steps = 0

    def add(self, stacked: StackedSteps) -> None:
        """Copies some steps."""
        start, self.steps = self.steps, self.steps + stacked.steps
        leaves = jax.tree.leaves((stacked.features, stacked.labels))
        for own, leaf in zip(self._leaves, leaves, strict=True):
            own[start : self.steps] = leaf

    @property
    def is_full(self) -> bool:
        """Whether there is no memory for more steps."""
        return self.steps == len(self._leaves[0])

    def added(self, stacked: StackedSteps) -> StackedSteps:
        """Copies some steps, and returns the copy, with its place in the room."""
        place = self.steps
        self.add(stacked)
        leaves = [leaf[place : self.steps] for leaf in self._leaves]
        features, labels = jax.tree.unflatten(self._structure, leaves)
        return StackedSteps(features, labels, True, self._room, place)

    def clear_rest(self) -> None:
        """Clears old values, about which a conversion to float32 would warn."""
        for leaf in self._leaves:
            if leaf.dtype == np.float64:
                leaf[self.steps :] = 0

    def stacked(self) -> StackedSteps:
        """Returns the copied steps."""
        self.clear_rest()
        leaves = [leaf[: self.steps] for leaf in self._leaves]
        features, labels = jax.tree.unflatten(self._structure, leaves)
        return StackedSteps(features, labels, may_stay=True, room=self._room)


def form(features: Features) -> Any:
    """Returns a key that is equal for features of one compiled program."""
    leaves, structure = jax.tree.flatten(features)
    return structure, *((leaf.shape, leaf.dtype) for leaf in leaves)


def is_ready(stacked: StackedSteps) -> bool:
    """Returns whether programs on a CPU can read steps in place."""
    return stacked.may_stay and all(
        leaf.flags.c_contiguous and leaf.ctypes.data % _ALIGNMENT == 0
        for leaf in jax.tree.leaves((stacked.features, stacked.labels))
    )


class Stacker:
    """A reader that combines stacked steps into stacks of the requested length.

    A piece that may not stay is copied before the next one is requested. `room` is the
    maximum number of steps in a stack, and the number to allocate memory for within
    `stack_size`.
    """

    def __init__(
        self,
        pieces: Iterator[StackedSteps],
        stack_size: StackSize,
        room: int | None = None,
    ):
        self._pieces = pieces
        self._max_bytes = stack_size
        self._room = room
        # Pieces that come before the others.
        self._rest: collections.deque[StackedSteps] = collections.deque()
        self._buffers = Buffers()
        # The form of the steps that are kept together, and the number of them
        # in a stack.
        self._together: tuple[Any, int] | None = None
        self._filling: Stack | None = None

    def take(self, steps: int) -> StackedSteps | None:
        """Returns up to `steps` aligned steps of equal shapes, or `None` at the end."""
        piece = self._next()
        if piece is None:
            return None
        if self._together is not None and steps == 1:
            piece = self._at_most(1, piece)
            if form(piece.features) == self._together[0]:
                return self._filled(piece, self._together[1])
        size = piece.step_bytes, self._max_bytes
        steps = room = even_share(steps, *size)
        if self._room is not None:
            room = even_share(self._room, *size)
            steps = min(steps, room)
        shapes = piece.shapes
        piece = self._at_most(steps, piece)
        if is_ready(piece) and (piece.steps == steps or not self._has_more(shapes)):
            return piece
        stack = Stack(self._buffers, piece, steps, room)
        stack.add(piece)
        while stack.steps < steps and self._has_more(shapes):
            following = self._next()
            if following is not None:
                stack.add(self._at_most(steps - stack.steps, following))
        return stack.stacked()

    def keep_together(self, like: StackedSteps, steps: int) -> None:
        """Stores steps that are taken one by one in stacks of `steps`, without labels.

        A run of several steps uses them without a copy. Only steps with features as in
        `like` are stored this way.
        """
        self._together = form(like.features), steps

    def peek(self) -> StackedSteps | None:
        """Returns the next piece, of at least one step, without removing it."""
        piece = self._next()
        if piece is not None:
            self._rest.appendleft(piece)
        return piece

    def skip(self, steps: int) -> int:
        """Skips up to `steps` steps, and returns the number of skipped ones."""
        left = steps
        while left and (piece := self._next()) is not None:
            left -= self._at_most(left, piece).steps
        return steps - left

    def close(self) -> None:
        """Closes the user's generators, unless a thread is inside them."""
        if hasattr(self._pieces, "close"):
            with contextlib.suppress(ValueError):
                self._pieces.close()
        self._pieces = iter(())
        self._rest.clear()

    def _filled(self, piece: StackedSteps, steps: int) -> StackedSteps:
        """Copies one step into the stack that is being filled."""
        piece = StackedSteps(piece.features, None)
        if self._filling is None or self._filling.is_full:
            self._filling = Stack(self._buffers, piece, steps)
            self._filling.clear_rest()
        return self._filling.added(piece)

    def _has_more(self, shapes: Any) -> bool:
        """Returns whether the next piece has these shapes."""
        following = self.peek()
        if following is None:
            return False
        return bool(following.shapes == shapes)

    def _at_most(self, steps: int, piece: StackedSteps) -> StackedSteps:
        """Returns the first steps of a piece, and puts back the others."""
        if piece.steps > steps:
            piece, rest = piece.split(steps)
            self._rest.appendleft(rest)
        return piece

    def _next(self) -> StackedSteps | None:
        if self._rest:
            return self._rest.popleft()
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
