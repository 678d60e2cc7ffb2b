"""Writing the loss into the event file."""

from keras_tpu_estimator.hooks.session_run_hook import Session
from keras_tpu_estimator.hooks.session_run_hook import SessionRunContext
from keras_tpu_estimator.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.hooks.session_run_hook import SessionRunValues
from keras_tpu_estimator.hooks.timer import SecondOrStepTimer
from keras_tpu_estimator.summary import EventWriter


class SummarySaverHook(SessionRunHook):
    """Writes `loss` after the first run and then every so many steps.

    Args:
        writer: Where it is written.
        save_steps: Steps between summaries.
    """

    def __init__(self, writer: EventWriter, save_steps: int):
        self._writer = writer
        self._timer = SecondOrStepTimer(every_steps=save_steps)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Writes if it is time."""
        del run_values
        session = run_context.session
        step = int(session.run("global_step"))
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            self._writer.scalars({"loss": float(session.run("loss"))}, step)

    def end(self, session: Session) -> None:
        """Makes what was written visible."""
        del session
        self._writer.flush()
