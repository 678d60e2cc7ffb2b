"""Epochs of Keras callbacks, counted in runs of the device loop."""

from collections.abc import Callable
from collections.abc import Mapping
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
        # The sums over the steps of the runs that were asked for already.
        self._sums: dict[str, float] = {}
        self._counted = 0
        self._runs: list[tuple[Logs, int]] = []
        self.is_open = False

    def count_of(self, last_step: int | None, runs: int | None) -> int | None:
        """How many epochs there are up to a step, or in so many runs."""
        if self._steps is None:
            return None if runs is None else self._count + runs
        return None if last_step is None else -(-last_step // self._steps)

    def begin(self, step: int) -> int:
        """Begins an epoch at a step; returns its number."""
        self.is_open = True
        self._runs, self._sums, self._counted = [], {}, 0
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
        self._sum_up()
        self.is_open = False
        number = self._count
        self._count += 1
        counted = max(self._counted, 1)
        means = {name: value / counted for name, value in self._sums.items()}
        return number, means

    def state(self) -> dict[str, Any]:
        """Returns what `resume` needs; waits for the logs."""
        self._sum_up()
        return {
            "steps": self._steps,
            "count": self._count,
            "is_open": self.is_open,
            "first_step": self.first_step,
            "sums": dict(self._sums),
            "counted": self._counted,
        }

    def resume(self, state: Mapping[str, Any], step: int) -> None:
        """Continues from a state, unless an epoch has other steps now.

        Args:
            state: What `state` returned.
            step: The global step that training starts from.
        """
        if state["steps"] != self._steps:
            return
        self._count = state["count"]
        if state["is_open"] and self.is_over(step):
            # It was saved before the epoch's end was called for.
            self._count += 1
        elif state["is_open"]:
            self.is_open = True
            self.first_step = state["first_step"]
            self._sums = dict(state["sums"])
            self._counted = state["counted"]

    @property
    def number(self) -> int:
        """The number of the epoch that is open, or comes next."""
        return self._count

    def _sum_up(self) -> None:
        """Adds what runs logged to the sums, in the order of the runs."""
        runs, self._runs = self._runs, []
        for logs, steps in runs:
            for name, value in logs().items():
                self._sums[name] = self._sums.get(name, 0.0) + steps * value
            self._counted += steps
