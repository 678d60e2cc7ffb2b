"""How many steps each run of the device loop makes."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator

from keras_tpu_estimator.ground.base.iterations import IterationsPerLoop

# Where nobody chooses: long enough for the time between loops not to count, and
# short enough for clocks and signals, which are looked at between loops.
_UNCHOSEN = IterationsPerLoop(1, "seconds")
# Steps of one program in a loop without a number of steps: as many as between
# two log lines by default. More of them are several runs of the program, whose
# overhead is small by then.
_TIMED_ROOM = 100
# The same while the duration of a step is unknown. The first step waits until all
# of them are read.
_TIMED_CHUNK = 50


@dataclasses.dataclass
class LoopSpeed:
    """The speed of the latest loops, for a later call.

    Attributes:
        rate: Steps per second. Defaults to 0: it is not known.
    """

    rate: float = 0.0


class LoopPlan:
    """The sizes of the loops to come.

    With a count, every loop has that many steps and the last one the rest.
    With a duration, the first loop has one step and the others as many as
    recent ones suggest. If an earlier call has measured the speed, the first
    loop has up to as many steps as one program.
    With neither, that is about a second, and loops end where hooks want it.

    Args:
        iterations: Steps, or seconds, of one loop; `None` for neither.
        steps: Steps to make, or `None` for no end.
        clock: Returns the time in seconds. Defaults to `time.monotonic`.
        is_open: Asked once all steps are planned: whether more loops, of
            steps that do not count, may be necessary. Defaults to never.
        speed: The speed of loops in earlier calls, where that of this plan is
            noted. Defaults to an unknown one.

    Example:

    >>> from keras_tpu_estimator.ground.base.iterations import IterationsPerLoop
    >>> list(LoopPlan(IterationsPerLoop.parse(4), steps=10))
    [4, 4, 2]
    >>> plan = LoopPlan(None, steps=4)
    >>> plan.end_at([2, 3, 5])
    >>> list(plan)
    [2, 1, 1]
    """

    def __init__(
        self,
        iterations: IterationsPerLoop | None,
        steps: int | None,
        clock: Callable[[], float] = time.monotonic,
        is_open: Callable[[], bool] = lambda: False,
        speed: LoopSpeed | None = None,
    ):
        self.follows_hooks = iterations is None
        iterations = iterations or _UNCHOSEN
        self._is_timed = iterations.unit == "seconds"
        self._target = iterations.value
        self._speed = speed or LoopSpeed()
        self._size = self._first_size() if self._is_timed else iterations.value
        self._is_fast = self._size == _TIMED_ROOM
        self._steps = steps
        self._is_open = is_open
        self._remaining = steps
        self._planned = 0
        self._ends: Iterator[int] | None = None
        self._next_end: int | None = None
        self._to_run = steps
        self._clock = clock
        self._last: float | None = None
        self._recent: list[tuple[int, float]] = []

    @property
    def chunk(self) -> int:
        """How many steps are usually wanted at once."""
        if not self._is_timed:
            return self._target
        return _TIMED_ROOM if self._is_fast else _TIMED_CHUNK

    @property
    def room(self) -> int:
        """The largest number of small steps in one program of a loop."""
        return _TIMED_ROOM if self._is_timed else self._target

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

    def next_size(self, unchosen: int) -> int:
        """The length of a loop that is planned after all others have run.

        Args:
            unchosen: The most steps if no length of loops was chosen.
        """
        size = unchosen if self.follows_hooks else self._size
        if self._to_run is None:
            return size
        return max(1, min(size, self._to_run))

    def end_at(self, ends: Iterable[int]) -> None:
        """Ends loops at some steps, unless their length was chosen.

        Loops that are planned already have one step.

        Args:
            ends: Numbers of steps from the first one on, in ascending order.
        """
        if self.follows_hooks:
            self._ends = iter(ends)

    def __iter__(self) -> Iterator[int]:
        """Yields the steps of each loop, which may be planned ahead."""
        return self.agreed(int)

    def agreed(self, agree: Callable[[int], int]) -> Iterator[int]:
        """Yields the steps of each loop, the same on all hosts.

        Args:
            agree: Returns the chief's size in place of this host's, whose
                clock is another one.
        """
        while self._remaining is None or self._remaining > 0 or self._is_open():
            size = agree(self._wanted()) if self._is_timed else self._size
            # Loops after all steps are planned have no end of their own.
            if self._remaining is not None and self._remaining > 0:
                size = min(size, self._remaining)
                self._remaining -= size
            self._planned += size
            yield size

    def _wanted(self) -> int:
        """The size of the next loop, as far as its end and the time go."""
        if self.follows_hooks and self._ends is None:
            # An end may be near, and hooks have yet to name it.
            return 1
        while self._next_end is None or self._next_end <= self._planned:
            self._next_end = next(self._ends or iter(()), None)
            if self._next_end is None:
                return self._size
        left = self._next_end - self._planned
        # One that is somewhat longer, rather than a short one after it.
        return left if left <= 2 * self._size else self._size

    def ran(
        self, steps: int, counted: int | None = None, is_known: bool = True
    ) -> None:
        """Notes that a loop has ended just now.

        Args:
            steps: How many steps it had.
            counted: By how many the global step has grown. Defaults to `steps`.
            is_known: Whether the call ran batches of these shapes before.
                Defaults to `True`.
        """
        if self._to_run is not None:
            self._to_run -= steps if counted is None else counted
        now = self._clock()
        if self._is_timed and self._last is not None and is_known:
            self._measure(steps, now - self._last)
        self._last = now

    def _first_size(self) -> int:
        """Returns the size of the first loops of a duration."""
        # Not all that the speed allows: the input may be slower this time.
        wanted = int(self._speed.rate * self._target)
        return max(1, min(wanted, _TIMED_ROOM))

    def _measure(self, steps: int, seconds: float) -> None:
        """Decides how many steps loops have, by the time that one took."""
        # A short rest before an end spends most of its time between loops.
        is_rest = 2 * steps < self._size and 2 * seconds < self._target
        if not is_rest:
            self._recent = [*self._recent[-4:], (steps, seconds)]
            seconds = sum(s for _, s in self._recent)
            rate = sum(n for n, _ in self._recent) / max(seconds, 1e-9)
            self._speed.rate = rate
            wanted = max(1, int(rate * self._target))
            # Not more than eightfold at a time: few steps are a small sample.
            self._size = min(wanted, 8 * max(n for n, _ in self._recent))
