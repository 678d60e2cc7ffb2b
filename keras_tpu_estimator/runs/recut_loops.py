"""Loops whose length is decided when they begin, not when input is staged."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from keras_tpu_estimator.runs.staging import StagedInput, StagedSteps


class RecutLoops:
    """Staged steps, cut into loops of another length.

    Args:
        first: The first steps.
        infeed: The steps after them, in any number of parts.
        next_size: Returns how many steps the next loop has, at least one.
            Called once all loops before it have run.
    """

    def __init__(
        self,
        first: StagedSteps,
        infeed: StagedInput,
        next_size: Callable[[], int],
    ):
        self._infeed = infeed
        self._next_size = next_size
        self._rest: StagedSteps | None = first
        self._left_of_loop = 0

    def __iter__(self) -> Iterator[StagedSteps]:
        return self

    def __next__(self) -> StagedSteps:
        staged = self._rest or next(self._infeed)
        if not self._left_of_loop:
            self._left_of_loop = self._next_size()
        taken, self._rest = staged.split(self._left_of_loop)
        self._left_of_loop -= taken.stacked.steps
        return dataclasses.replace(taken, ends_loop=not self._left_of_loop)

    @property
    def is_ready(self) -> bool:
        """Returns `False`: the loop before decides on the next one."""
        return False

    def take_ready(self) -> StagedSteps | None:
        """Returns nothing: the loop before decides on the next one."""
        return None

    def take_waited_secs(self) -> float:
        """Returns how long the input was waited for since the last call."""
        return self._infeed.take_waited_secs()


class SizesBetween:
    """The sizes of loops that end at certain runs.

    Args:
        ends: The numbers of the runs, from 1 on, in ascending order.
        most: The largest size.

    Example:

    >>> size_after = SizesBetween([1, 3, 10], most=4)
    >>> [size_after(done) for done in (0, 1, 3, 7, 10)]
    [1, 2, 4, 3, 4]
    """

    def __init__(self, ends: Iterable[int], most: int):
        self._ends = iter(ends)
        self._next_end: int | None = 0
        self._most = most

    def __call__(self, done: int) -> int:
        """Returns the size of the next loop after `done` runs."""
        while self._next_end is not None and self._next_end <= done:
            self._next_end = next(self._ends, None)
        if self._next_end is None:
            return self._most
        return min(self._most, self._next_end - done)
