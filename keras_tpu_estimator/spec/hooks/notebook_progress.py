"""How far training is, below a cell of a notebook."""

import time
from collections.abc import Callable

from keras_tpu_estimator.ground.base import notebook
from keras_tpu_estimator.spec.hooks.session import Session
from keras_tpu_estimator.spec.hooks.session_run_hook import LoopHook

# A notebook keeps up with few changes of what it shows.
_EVERY_SECS = 0.2


class NotebookProgressHook(LoopHook):
    """Shows steps, the loss, rates and the time left, in one place.

    Rates are those since the end of the first run, which has to be compiled.

    Args:
        steps: How many steps there will be, or `None` if that is open.
        batch_size: Examples in a step, or `None` if that is not known.
        show: Shows a line in place of the one before. Defaults to
            `notebook.show`.
        clock: Returns the time in seconds. Defaults to `time.monotonic`.
    """

    allows_run_ahead = True

    def __init__(
        self,
        steps: int | None,
        batch_size: int | None,
        show: Callable[[notebook.Line], None] = notebook.show,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._steps = steps
        self._batch_size = batch_size
        self._show = show
        self._clock = clock

    def after_create_session(self, session: Session, coord: object) -> None:
        """Starts at no steps."""
        del coord
        self._start = int(session.run("global_step"))
        self._began = self._shown = self._clock()
        self._first: tuple[int, float] | None = None
        self._show(notebook.Line(self._told(0), 0.0 if self._steps else None))

    def run_is_made(self, session: Session) -> None:
        """Moves on, unless it did so just now."""
        now = self._clock()
        if self._first is None:
            self._first = self._made(session), now
        elif now < self._shown + _EVERY_SECS:
            return
        self._move_on(session, now)

    def end(self, session: Session) -> None:
        """Shows the last step, and leaves it there."""
        self._move_on(session, self._clock(), is_end=True)
        notebook.leave()

    def _made(self, session: Session) -> int:
        return int(session.run("global_step")) - self._start

    def _move_on(
        self, session: Session, now: float, is_end: bool = False
    ) -> None:
        self._shown = now
        made = self._made(session)
        told = [self._told(made), f"loss {float(session.run('loss')):.4g}"]
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
        self._show(notebook.Line(", ".join(told), done))

    def _told(self, made: int) -> str:
        step = self._start + made
        if not self._steps:
            return f"step {step}"
        return f"step {step} of {self._start + self._steps}"

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
