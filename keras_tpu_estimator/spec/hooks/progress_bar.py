"""A line that tells how far training is, on a terminal or in a notebook."""

import sys
from collections.abc import Iterable

import keras

from keras_tpu_estimator.ground.base import notebook
from keras_tpu_estimator.spec.hooks.notebook_progress import (
    NotebookProgressHook,
)
from keras_tpu_estimator.spec.hooks.session import Session
from keras_tpu_estimator.spec.hooks.session_run_hook import LoopHook


class ProgressBarHook(LoopHook):
    """Shows steps, their rate, the time left and the loss.

    The line is that of `keras.utils.Progbar`.

    Args:
        steps: How many steps there will be, or `None` if that is open.
    """

    allows_run_ahead = True

    def __init__(self, steps: int | None):
        self._bar = keras.utils.Progbar(steps, stateful_metrics=["loss"])
        self._start = 0

    def after_create_session(self, session: Session, coord: object) -> None:
        """Starts at no steps."""
        del coord
        self._start = int(session.run("global_step"))

    def run_ends(self, start: int) -> Iterable[int]:
        """None: any end will do."""
        del start
        return ()

    def run_is_made(self, session: Session) -> None:
        """Moves on."""
        self._show(session, is_end=False)

    def end(self, session: Session) -> None:
        """Ends the line."""
        self._show(session, is_end=True)

    def _show(self, session: Session, is_end: bool) -> None:
        step, loss = session.run(["global_step", "loss"])
        self._bar.update(
            int(step) - self._start, [("loss", float(loss))], finalize=is_end
        )


def shows_progress(setting: bool | str) -> bool:
    """Whether `RunConfig.progress` asks for a line here and now."""
    if setting == "auto":
        return sys.stdout.isatty() or notebook.is_here()
    return bool(setting)


def progress_hook(steps: int | None, batch_size: int | None) -> LoopHook:
    """What shows how far training is, here.

    Args:
        steps: How many steps there will be, or `None` if that is open.
        batch_size: Examples in a step, or `None` if that is not known.
    """
    if notebook.is_here():
        return NotebookProgressHook(steps, batch_size)
    return ProgressBarHook(steps)
