"""The progress display of one call, on a terminal or in a notebook."""

import sys
from collections.abc import Iterable
from typing import Protocol

import keras

from keras_tpu_estimator.api.hooks.progress_bar import (
    LossNow,
    NotebookProgress,
    PassingBar,
    ProgressBar,
)
from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import LoopHook
from keras_tpu_estimator.base.common import notebook


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
    """A hook that shows the global step, the loss, the rate and the time left.

    Args:
        steps: The number of steps in this call, or `None` if unknown.
        batch_size: Examples in a step, or `None` if unknown.
    """

    allows_run_ahead = True

    def __init__(self, steps: int | None, batch_size: int | None):
        self._steps = steps
        self._batch_size = batch_size

    def after_create_session(self, session: Session, coord: object) -> None:
        """Begins at the first global step."""
        del coord
        self._progress = started(
            int(session.run("global_step")), self._steps, self._batch_size
        )

    def run_ends(self, start: int) -> Iterable[int]:
        """Returns no steps, because it accepts any end."""
        del start
        return ()

    def run_is_made(self, session: Session) -> None:
        """Shows the steps of a run."""
        self._show(session)

    def end(self, session: Session) -> None:
        """Finishes the line."""
        self._show(session, is_end=True)

    def _show(self, session: Session, is_end: bool = False) -> None:
        self._progress.show(
            int(session.run("global_step")),
            lambda: float(session.run("loss")),
            is_end,
        )


def shows_progress(setting: bool | str) -> bool:
    """Returns whether `RunConfig.progress` asks for a display in this process."""
    if setting == "auto":
        return sys.stdout.isatty() or notebook.is_here()
    return bool(setting)


def started(
    start: int, steps: int | None, batch_size: int | None, unit: str = "step"
) -> Progress:
    """Starts the display of a training or an evaluation.

    Args:
        start: The steps before this call.
        steps: The number of steps in this call, or `None` if unknown.
        batch_size: Examples in a step, or `None` if unknown.
        unit: The name of a step in notebooks. Defaults to `"step"`.
    """
    if notebook.is_here():
        return NotebookProgress(start, steps, batch_size, unit)
    return ProgressBar(start, steps)


def prediction_started(setting: bool | str, batch_size: int | None) -> Progress:
    """Starts the display of a `predict`, whose caller may print results.

    Args:
        setting: `RunConfig.progress`.
        batch_size: Examples in a batch, or `None` if unknown.
    """
    if not shows_progress(setting):
        return NoProgress()
    if notebook.is_here():
        return NotebookProgress(0, None, batch_size, "predicted batch")
    if sys.stdout.isatty() and keras.config.is_interactive_logging_enabled():
        return PassingBar()
    return NoProgress()
