"""A line on the terminal that tells how far training is."""

import sys

import keras

from keras_tpu_estimator.hooks.session import Session
from keras_tpu_estimator.hooks.session_run_hook import SessionRunArgs
from keras_tpu_estimator.hooks.session_run_hook import SessionRunContext
from keras_tpu_estimator.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.hooks.session_run_hook import SessionRunValues


class ProgressBarHook(SessionRunHook):
    """Shows steps, their rate, the time left and the loss.

    The line is that of `keras.utils.Progbar`.

    Args:
        steps: How many steps there will be, or `None` if that is open.
    """

    def __init__(self, steps: int | None):
        self._bar = keras.utils.Progbar(steps, stateful_metrics=["loss"])
        self._start = 0

    def after_create_session(self, session: Session, coord: object) -> None:
        """Starts at no steps."""
        del coord
        self._start = int(session.run("global_step"))

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Asks for the loss."""
        del run_context
        return SessionRunArgs(["global_step", "loss"])

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Moves on."""
        del run_context
        step, loss = run_values.results
        steps = int(step) - self._start
        self._bar.update(steps, [("loss", float(loss))], finalize=False)

    def end(self, session: Session) -> None:
        """Ends the line."""
        steps = int(session.run("global_step")) - self._start
        loss = float(session.run("loss"))
        self._bar.update(steps, [("loss", loss)], finalize=True)


def shows_progress(setting: bool | str) -> bool:
    """Whether `RunConfig.progress` asks for a line here and now."""
    return sys.stdout.isatty() if setting == "auto" else bool(setting)
