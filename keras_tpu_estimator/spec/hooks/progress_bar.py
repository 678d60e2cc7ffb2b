"""Progress bars on a terminal, drawn by `keras.utils.Progbar`."""

import sys
import time
from collections.abc import Callable
from typing import TypeAlias

import keras

from keras_tpu_estimator.ground.base import terminal_line

# Returns the loss, or is `None` if there is none yet.
LossNow: TypeAlias = Callable[[], float] | None

# Control sequences of terminals.
_ONE_DOWN, _ONE_UP = "\x1bD", "\x1bM"  # In the same column.
_KEEP_PLACE, _BACK_TO_PLACE = "\x1b7", "\x1b8"
_ERASE_LINE = "\x1b[2K"
# The first runs do not show how long a step takes.
_RUNS_TO_TIME = 4
# Predictions that are made sooner need no bar.
_PASSING_AFTER_SECS = 0.5


class _Bar(keras.utils.Progbar):
    """Keras's bar, for steps that follow others.

    Args:
        start: The steps before, which took no time here.
        steps: The number of steps to come, or `None` if it is open.
        interval: Seconds between two updates. Defaults to 0.05.
    """

    def __init__(self, start: int, steps: int | None, interval: float = 0.05):
        super().__init__(
            None if steps is None else start + steps,
            stateful_metrics=["loss"],
            interval=interval,
        )
        # The start, and the ends of runs.
        self._ends = [(start, time.time())]

    def _estimate_step_duration(self, current: int, now: float) -> float:
        """Leaves out the first run, which is compiled, once there are some."""
        if current > self._ends[-1][0] and len(self._ends) < _RUNS_TO_TIME:
            self._ends.append((current, now))
        is_known = current > self._ends[-1][0]
        step, since = self._ends[1 if is_known else 0]
        return (now - since) / (current - step) if current > step else 0.0


class ProgressBar:
    """A bar from the steps before this call to its last step.

    Args:
        start: The steps before this call.
        steps: The number of steps in this call, or `None` if it is open.
    """

    def __init__(self, start: int, steps: int | None):
        self._bar = _Bar(start, steps)

    def show(self, step: int, loss: LossNow, is_end: bool = False) -> None:
        """Draws the bar, and finishes its line at the end."""
        values = [] if loss is None else [("loss", loss())]
        terminal_line.begin()
        self._bar.update(step, values, finalize=is_end)
        if is_end:
            terminal_line.finished()

    def hide(self) -> None:
        """Finishes the line."""
        terminal_line.end()


class PassingBar:
    """A bar that is shown while `predict` waits for a batch.

    It is drawn on the line below the cursor and erased before the caller gets
    the batch, so that it never touches a line that the caller has printed.
    """

    def __init__(self) -> None:
        self._bar = _Bar(0, None, interval=0.0)
        self._began = time.monotonic()
        self._is_drawn = False

    def show(self, step: int, loss: LossNow, is_end: bool = False) -> None:
        """Draws the bar, or erases it at the end."""
        del loss
        if is_end:
            self.hide()
        elif time.monotonic() >= self._began + _PASSING_AFTER_SECS:
            sys.stdout.write(f"{_ONE_DOWN}{_KEEP_PLACE}")
            self._bar.update(step)
            sys.stdout.write(f"{_BACK_TO_PLACE}{_ONE_UP}")
            sys.stdout.flush()
            self._is_drawn = True

    def hide(self) -> None:
        """Erases the bar."""
        if self._is_drawn:
            sys.stdout.write(f"{_ONE_DOWN}{_ERASE_LINE}{_ONE_UP}")
            sys.stdout.flush()
            self._is_drawn = False
