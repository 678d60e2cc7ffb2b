"""The lengths of the device loops of one call.

Nearly all programs add one to the global step in each run, so that all loops can be
planned before the first one. Gradient accumulation or loss scaling may add nothing
in some runs, and two optimizers may add two. Their loops are planned one by one,
from the global step after the previous loop. As in TensorFlow, a loop on a TPU then
has as many steps as remain to be counted, up to `iterations_per_loop`; elsewhere
each run is a loop.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from keras_tpu_estimator.api.config.tpu_config import IterationsPerLoop
from keras_tpu_estimator.engine.program.steps import Step

# The default is long enough to hide the time between loops, and short enough for
# clocks and signals, which are checked between loops.
_DEFAULT_LENGTH = IterationsPerLoop(1, "seconds")
# The number of steps of one program in a timed loop, which is the default number
# between two log lines. Longer loops run the program several times, at a small
# overhead.
_TIMED_CAPACITY = 100
# The number while the duration of a step is unknown, because the first step waits
# until all of them are read.
_TIMED_CHUNK = 50


@dataclasses.dataclass
class LoopSpeed:
    """The speed of the latest loops, in steps per second, for a later call.

    It is 0 if it is unknown.
    """

    rate: float = 0.0


class LoopPlan:
    """The sizes of the coming loops.

    With a count, each loop has that many steps, and the last one the rest. With a
    duration, the first loop has one step, and the others follow from the speed of
    recent ones; if an earlier call has measured the speed, the first loop has up to the
    steps of one program. With neither, loops take about a second and end where hooks
    must run.

    `steps` is `None` for no end. `is_open` returns whether more loops may be needed
    after all steps are planned, because some runs count no step.
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
        iterations = iterations or _DEFAULT_LENGTH
        self._is_timed = iterations.unit == "seconds"
        self._target = iterations.value
        self._speed = speed or LoopSpeed()
        self._size = self._first_size() if self._is_timed else iterations.value
        self._is_fast = self._size == _TIMED_CAPACITY
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
        """The usual number of steps to read at once."""
        if not self._is_timed:
            return self._target
        return _TIMED_CAPACITY if self._is_fast else _TIMED_CHUNK

    @property
    def capacity(self) -> int:
        """The largest number of small steps in one program of a loop."""
        return _TIMED_CAPACITY if self._is_timed else self._target

    @property
    def is_timed(self) -> bool:
        """Whether the lengths of loops follow from their durations."""
        return self._is_timed

    @property
    def loops(self) -> int | None:
        """The total number of loops, or `None` if it is unknown."""
        if self._is_timed or self._steps is None:
            return None
        return -(-self._steps // self._target)

    @property
    def is_done(self) -> bool:
        """Whether all steps have run."""
        return self._to_run is not None and self._to_run <= 0

    def next_size(self, default: int) -> int:
        """Returns the next loop's length, at most `default` if no length is set."""
        size = default if self.follows_hooks else self._size
        if self._to_run is None:
            return size
        return max(1, min(size, self._to_run))

    def end_at(self, ends: Iterable[int]) -> None:
        """Ends later loops at ascending numbers of steps, if no length is set."""
        if self.follows_hooks:
            self._ends = iter(ends)

    def __iter__(self) -> Iterator[int]:
        """Yields the steps of each loop, which may be planned ahead."""
        return self.agreed(int)

    def agreed(self, agree: Callable[[int], int]) -> Iterator[int]:
        """Yields the steps of each loop; the chief's clock sets timed sizes."""
        while self._remaining is None or self._remaining > 0 or self._is_open():
            size = agree(self._planned_size()) if self._is_timed else self._size
            # Loops after all planned steps have the full size.
            if self._remaining is not None and self._remaining > 0:
                size = min(size, self._remaining)
                self._remaining -= size
            self._planned += size
            yield size

    def _planned_size(self) -> int:
        """Returns the size of the next loop, given the ends and the speed."""
        if self.follows_hooks and self._ends is None:
            # Hooks have not set the ends yet, and one may be near.
            return 1
        while self._next_end is None or self._next_end <= self._planned:
            self._next_end = next(self._ends or iter(()), None)
            if self._next_end is None:
                return self._size
        until_end = self._next_end - self._planned
        # A somewhat longer loop is better than a short one after it.
        return until_end if until_end <= 2 * self._size else self._size

    def ran(
        self, steps: int, counted: int | None = None, is_known: bool = True
    ) -> None:
        """Records the end of a loop, and the increase of the global step if it differs.

        `is_known` means that the call ran batches of these shapes before.
        """
        if self._to_run is not None:
            self._to_run -= steps if counted is None else counted
        now = self._clock()
        if self._is_timed and self._last is not None and is_known:
            self._measure(steps, now - self._last)
        self._last = now

    def _first_size(self) -> int:
        """Returns the size of the first loops of a duration."""
        # The input may be slower than in the earlier call.
        size = int(self._speed.rate * self._target)
        return max(1, min(size, _TIMED_CAPACITY))

    def _measure(self, steps: int, seconds: float) -> None:
        """Sets the length of loops from the duration of one."""
        # A short remainder spends most of its time between loops.
        is_rest = 2 * steps < self._size and 2 * seconds < self._target
        if not is_rest:
            self._recent = [*self._recent[-4:], (steps, seconds)]
            seconds = sum(s for _, s in self._recent)
            rate = sum(n for n, _ in self._recent) / max(seconds, 1e-9)
            self._speed.rate = rate
            size = max(1, int(rate * self._target))
            # Few steps are a small sample, so that loops grow at most eightfold.
            self._size = min(size, 8 * max(n for n, _ in self._recent))


class StepCounting:
    """Whether training may need more batches than it counts steps.

    The program assigns the global step, which is known after the first trace, or hooks
    train on batches of their own, which is known after their `begin`. The thread that
    stages the input waits for the answer before it ends.
    """

    def __init__(self) -> None:
        self._is_known = threading.Event()
        self._is_by_value = False

    def settle(self, step: Step, hooks_train: bool) -> None:
        """Sets the answer from the traced training step and the hooks."""
        self._is_by_value = hooks_train or not step.additions.counts_once
        self._is_known.set()

    def give_up(self) -> None:
        """Ends `is_open` on another thread without a training step."""
        self._is_known.set()

    def is_open(self) -> bool:
        """Returns the answer, when it is known."""
        self._is_known.wait()
        return self._is_by_value


class SizesBetween:
    """The sizes of loops, at most `most`, that must end at some runs.

    The runs are numbered from 1, in ascending order.
    """

    def __init__(self, ends: Iterable[int], most: int):
        self._ends = iter(ends)
        self._next_end: int | None = 0
        self._most = most

    def __call__(self, runs: int) -> int:
        """Returns the size of the next loop after a number of runs."""
        while self._next_end is not None and self._next_end <= runs:
            self._next_end = next(self._ends, None)
        if self._next_end is None:
            return self._most
        return min(self._most, self._next_end - runs)
