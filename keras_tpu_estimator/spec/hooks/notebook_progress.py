"""The progress of a call, below a cell of a notebook."""

import time
from collections.abc import Callable

from keras_tpu_estimator.ground.base import notebook
from keras_tpu_estimator.spec.hooks.progress_bar import LossNow

# A notebook keeps up with few changes of what it shows.
_EVERY_SECS = 0.2


class NotebookProgress:
    """Shows steps, the loss, rates and the time left, in one place.

    Rates are those since the end of the first run, which has to be compiled.

    Args:
        start: The steps before this call.
        steps: The number of steps in this call, or `None` if it is open.
        batch_size: Examples in a step, or `None` if that is unknown.
        unit: The name of a step. Defaults to `"step"`.
        display: Shows a line in place of the one before. Defaults to
            `notebook.show`.
        clock: Returns the time in seconds. Defaults to `time.monotonic`.
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
        display(notebook.Line(self._told(0), 0.0 if steps else None))

    def show(self, step: int, loss: LossNow, is_end: bool = False) -> None:
        """Moves on, unless it did so just now; the last step stays there."""
        now, made = self._clock(), step - self._start
        if self._first is None:
            self._first = made, now
        elif now < self._shown + _EVERY_SECS and not is_end:
            return
        self._move_on(made, loss, now, is_end)
        if is_end:
            notebook.leave()

    def hide(self) -> None:
        """Stays: what a program prints has another place."""

    def _move_on(
        self, made: int, loss: LossNow, now: float, is_end: bool
    ) -> None:
        self._shown = now
        told = [self._told(made)]
        if loss is not None:
            told.append(f"loss {loss():.4g}")
        rate = self._rate(made, now)
        if rate:
            told.append(f"{_number(rate)} steps/s")
            if self._batch_size:
                told.append(f"{_number(rate * self._batch_size)} examples/s")
        if is_end:
            told.append(f"{_duration(now - self._began)} in all")
        elif rate and self._steps:
            told.append(f"{_duration((self._steps - made) / rate)} left")
        done = made / self._steps if self._steps else None
        self._display(notebook.Line(", ".join(told), done))

    def _told(self, made: int) -> str:
        step = self._start + made
        if not self._steps:
            return f"{self._unit} {step}"
        return f"{self._unit} {step} of {self._start + self._steps}"

    def _rate(self, made: int, now: float) -> float | None:
        """Steps per second; of the whole if there is no second run."""
        steps, since = self._first or (0, self._began)
        if made == steps:
            steps, since = 0, self._began
        return (made - steps) / (now - since) if now > since else None


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    """Seconds as people write them, such as 1:02:03, 0:47 or 7.1 s."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}"
