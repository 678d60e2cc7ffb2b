"""The progress display of one call, on a terminal or in a notebook."""

import math
import sys
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

import keras

from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import LoopHook
from keras_tpu_estimator.base.common import notebook, waiting

# Returns the loss, or `None` before the first one.
LossNow: TypeAlias = Callable[[], float] | None

# Control sequences of terminals.
_ONE_DOWN, _ONE_UP = "\x1bD", "\x1bM"  # Cursor movements that keep the column.
_KEEP_PLACE, _BACK_TO_PLACE = "\x1b7", "\x1b8"
_ERASE_LINE = "\x1b[2K"
# The first runs include compilation, so they do not show the rate.
_RUNS_TO_TIME = 4
# Seconds without a bar, because most predictions are faster.
_PASSING_AFTER_SECS = 0.5


class _Bar(keras.utils.Progbar):
    """Keras's bar, for steps that follow `start` earlier steps, which took no time in
    this call.
    """

    def __init__(self, start: int, steps: int | None, interval: float = 0.05):
        super().__init__(
            None if steps is None else start + steps,
            stateful_metrics=["loss"],
            interval=interval,
        )
        # The start and the ends of runs.
        self._ends = [(start, time.time())]

    def _estimate_step_duration(self, current: int, now: float) -> float:
        """Returns the rate, without the first run, which is compiled."""
        if current > self._ends[-1][0] and len(self._ends) < _RUNS_TO_TIME:
            self._ends.append((current, now))
        is_known = current > self._ends[-1][0]
        step, since = self._ends[1 if is_known else 0]
        return (now - since) / (current - step) if current > step else 0.0


class ProgressBar:
    """A bar for the steps of one call."""

    def __init__(self, start: int, steps: int | None):
        self._bar = _Bar(start, steps)

    def show(self, step: int, loss: LossNow, is_end: bool = False) -> None:
        """Draws the bar, and finishes its line at the end."""
        values = [] if loss is None else [("loss", loss())]
        waiting.begin()
        self._bar.update(step, values, finalize=is_end)
        if is_end:
            waiting.finished()

    def hide(self) -> None:
        """Finishes the line."""
        waiting.end()


class PassingBar:
    """A bar that is shown while `predict` waits for a batch, on the line below the
    cursor, and erased before the caller receives the batch, so that it never changes a
    line that the caller printed.
    """

    def __init__(self) -> None:
        # Keras measures intervals by a clock that may go back.
        self._bar = _Bar(0, None, interval=-math.inf)
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


# Notebooks display frequent changes slowly.
_EVERY_SECS = 0.2


class NotebookProgress:
    """A notebook's line with steps, the loss, the time left, and rates, which are
    measured from the end of the first run, because it compiles.
    """

    def __init__(
        self,
        start: int,
        steps: int | None,
        batch_size: int | None,
        unit: str = "step",
        display: Callable[[notebook.Line], None] = notebook.show,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._start = start
        self._steps = steps
        self._batch_size = batch_size
        self._unit = unit
        self._display = display
        self._clock = clock
        self._began = self._shown = self._clock()
        self._first: tuple[int, float] | None = None
        display(notebook.Line(self._progress(0), 0.0 if steps else None))

    def show(self, step: int, loss: LossNow, is_end: bool = False) -> None:
        """Updates the line if it is old; always shows the last step."""
        now, steps = self._clock(), step - self._start
        if self._first is None:
            self._first = steps, now
        elif now < self._shown + _EVERY_SECS and not is_end:
            return
        self._move_on(steps, loss, now, is_end)
        if is_end:
            notebook.leave()

    def hide(self) -> None:
        """Does nothing, because printed output has a separate place."""

    def _move_on(self, steps: int, loss: LossNow, now: float, is_end: bool) -> None:
        self._shown = now
        parts = [self._progress(steps)]
        if loss is not None:
            parts.append(f"loss {loss():.4g}")
        rate = self._rate(steps, now)
        if rate:
            parts.append(f"{_number(rate)} steps/s")
            if self._batch_size:
                parts.append(f"{_number(rate * self._batch_size)} examples/s")
        if is_end:
            parts.append(f"{_duration(now - self._began)} in total")
        elif rate and self._steps:
            parts.append(f"{_duration((self._steps - steps) / rate)} left")
        share = steps / self._steps if self._steps else None
        self._display(notebook.Line(", ".join(parts), share))

    def _progress(self, steps: int) -> str:
        step = self._start + steps
        if not self._steps:
            return f"{self._unit} {step}"
        return f"{self._unit} {step} of {self._start + self._steps}"

    def _rate(self, steps: int, now: float) -> float | None:
        """Returns steps per second, including the first run if it is the only one."""
        first, since = self._first or (0, self._began)
        if steps == first:
            first, since = 0, self._began
        return (steps - first) / (now - since) if now > since else None


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    """Formats seconds, such as 1:02:03, 0:47 or 7.1 s."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}"


class Progress(Protocol):
    """A display of the steps of one call."""

    def show(self, step: int, loss: LossNow, is_end: bool = False) -> None:
        """Shows that all steps up to this one are complete."""

    def hide(self) -> None:
        """Clears the line for the user's own output."""


class NoProgress:
    """The display of a call that shows no progress."""

    def show(self, step: int, loss: LossNow, is_end: bool = False) -> None:
        """Shows nothing."""

    def hide(self) -> None:
        """Does nothing."""


class ProgressHook(LoopHook):
    """A hook that shows the global step, the loss, the rate and the time left."""

    def __init__(self, steps: int | None, batch_size: int | None):
        self._steps = steps
        self._batch_size = batch_size

    def after_create_session(self, session: Session, coord: object) -> None:
        """Begins at the first global step."""
        del coord
        self._progress = started(session.results.step, self._steps, self._batch_size)

    def run_completed(self, session: Session) -> None:
        """Shows the steps of a run."""
        self._show(session)

    def end(self, session: Session) -> None:
        """Finishes the line."""
        self._show(session, is_end=True)

    def _show(self, session: Session, is_end: bool = False) -> None:
        results = session.results
        self._progress.show(results.step, lambda: float(results.loss), is_end)


def shows_progress(setting: bool | str) -> bool:
    """Returns whether `RunConfig.progress` asks for a display in this process."""
    if setting == "auto":
        return sys.stdout.isatty() or notebook.is_here()
    return bool(setting)


def started(
    start: int, steps: int | None, batch_size: int | None, unit: str = "step"
) -> Progress:
    """Starts the display of a training or an evaluation that follows `start` steps."""
    if notebook.is_here():
        return NotebookProgress(start, steps, batch_size, unit)
    return ProgressBar(start, steps)


def prediction_started(setting: bool | str, batch_size: int | None) -> Progress:
    """Starts the display of a `predict`, whose caller may print results."""
    if not shows_progress(setting):
        return NoProgress()
    if notebook.is_here():
        return NotebookProgress(0, None, batch_size, "predicted batch")
    if sys.stdout.isatty() and keras.config.is_interactive_logging_enabled():
        return PassingBar()
    return NoProgress()
