"""How many steps each run of the device loop makes."""

import time
from collections.abc import Callable
from collections.abc import Iterator

from keras_tpu_estimator.ground.base.iterations import IterationsPerLoop


class LoopPlan:
    """The sizes of the loops to come.

    With a count, every loop has that many steps and the last one the rest.
    With a duration, the first loop has one step and the others as many as
    recent ones suggest: a power of two, so that few programs are compiled.

    Args:
        iterations: Steps, or seconds, of one loop.
        steps: Steps to make, or `None` for no end.
        clock: Returns the time in seconds. Defaults to `time.monotonic`.

    Example:

    >>> from keras_tpu_estimator.ground.base.iterations import IterationsPerLoop
    >>> list(LoopPlan(IterationsPerLoop.parse(4), steps=10))
    [4, 4, 2]
    """

    def __init__(
        self,
        iterations: IterationsPerLoop,
        steps: int | None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._is_timed = iterations.unit == "seconds"
        self._target = iterations.value
        self._size = 1 if self._is_timed else iterations.value
        self._steps = steps
        self._remaining = steps
        self._to_run = steps
        self._clock = clock
        self._last: float | None = None
        self._recent: list[tuple[int, float]] = []

    @property
    def chunk(self) -> int:
        """How many steps are usually wanted at once."""
        return self._size

    @property
    def is_timed(self) -> bool:
        """Whether the time that loops take decides how many steps they make."""
        return self._is_timed

    @property
    def loops(self) -> int | None:
        """How many loops there will be in all, or `None` if that is open."""
        if self._is_timed or self._steps is None:
            return None
        return -(-self._steps // self._target)

    @property
    def is_done(self) -> bool:
        """Whether all steps have been made."""
        return self._to_run is not None and self._to_run <= 0

    def __iter__(self) -> Iterator[int]:
        """Yields the steps of each loop, which may be planned ahead."""
        return self.agreed(int)

    def agreed(self, agree: Callable[[int], int]) -> Iterator[int]:
        """Yields the steps of each loop, the same on all hosts.

        Args:
            agree: Returns the chief's size in place of this host's, whose
                clock is another one.
        """
        while self._remaining is None or self._remaining > 0:
            size = agree(self._size) if self._is_timed else self._size
            if self._remaining is not None:
                size = min(size, self._remaining)
                self._remaining -= size
            yield size

    def ran(self, steps: int) -> None:
        """Tells that a loop of so many steps has ended just now."""
        if self._to_run is not None:
            self._to_run -= steps
        now = self._clock()
        if self._is_timed and self._last is not None:
            self._recent = [*self._recent[-4:], (steps, now - self._last)]
            seconds = sum(s for _, s in self._recent)
            rate = sum(n for n, _ in self._recent) / max(seconds, 1e-9)
            wanted = max(1, int(rate * self._target))
            # Not more than eightfold at a time: compiling took its time, too.
            wanted = min(wanted, 8 * steps)
            self._size = 1 << (wanted.bit_length() - 1)
        self._last = now
