"""Epochs of Keras callbacks, counted in runs of the device loop."""

from collections.abc import Callable
from typing import Any
from typing import TypeAlias

# Gives numbers by name when they are wanted, which may take a while.
Logs: TypeAlias = Callable[[], dict[str, Any]]


class Epochs:
    """Which epoch it is, and the means over it.

    Args:
        steps: Steps of an epoch; with `None` each run is one.

    Attributes:
        is_open: Whether one has begun and not ended.
        first_step: The global step that it began at, or would have, had this
            training begun sooner.
    """

    def __init__(self, steps: int | None):
        self._steps = steps
        self.first_step = 0
        self._count = 0
        self._runs: list[tuple[Logs, int]] = []
        self.is_open = False

    def count_of(self, last_step: int | None, runs: int | None) -> int | None:
        """How many epochs there are up to a step, or in so many runs."""
        if self._steps is None:
            return runs
        return None if last_step is None else -(-last_step // self._steps)

    def begin(self, step: int) -> int:
        """Begins an epoch at a step; returns its number."""
        self.is_open = True
        self._runs = []
        self.first_step = step
        if self._steps is not None:
            self._count = step // self._steps
            self.first_step = self._count * self._steps
        return self._count

    def count(self, logs: Logs, steps: int) -> None:
        """Takes the means over so many steps, which are asked for later."""
        self._runs.append((logs, steps))

    def is_over(self, step: int) -> bool:
        """Whether the epoch ends with the run that ended at a step."""
        return self._steps is None or step // self._steps > self._count

    def end(self) -> tuple[int, dict[str, Any]]:
        """Ends the epoch; returns its number and the means over it."""
        self.is_open = False
        number = self._count
        self._count += 1
        counted = max(sum(steps for _, steps in self._runs), 1)
        sums: dict[str, float] = {}
        for logs, steps in self._runs:
            for name, value in logs().items():
                sums[name] = sums.get(name, 0.0) + steps * value
        return number, {name: value / counted for name, value in sums.items()}
