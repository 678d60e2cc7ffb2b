"""Writing the loss, and what a `model_fn` records, into the event file."""

from collections.abc import Callable
from collections.abc import Sequence

from keras_tpu_estimator.files.summary import EventWriter
from keras_tpu_estimator.files.summary import collecting
from keras_tpu_estimator.spec.hooks.session import Session
from keras_tpu_estimator.spec.hooks.session_run_hook import LoopHook
from keras_tpu_estimator.spec.hooks.timer import SecondOrStepTimer


class RecordedSummariesHook(LoopHook):
    """Writes summaries after the first run and then every so many steps.

    They are the `loss`, unless `model_fn` records one of that name, and what
    `model_fn` recorded in the last step. Only then it leaves the devices.

    Args:
        writer: Where they are written.
        save_steps: Steps between summaries.
        newest: Returns what `model_fn` recorded in the last step.
    """

    allows_run_ahead = True

    def __init__(
        self,
        writer: EventWriter,
        save_steps: int,
        newest: Callable[[], Sequence[collecting.Collected]],
    ):
        self._writer = writer
        self._timer = SecondOrStepTimer(every_steps=save_steps)
        self._newest = newest

    def run_is_made(self, session: Session) -> None:
        """Writes if it is time."""
        step = int(session.run("global_step"))
        if not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        newest = self._newest()
        if not any(
            each.summary.tag == "loss" and each.events is None
            for each in newest
        ):
            self._writer.scalars({"loss": float(session.run("loss"))}, step)
        collecting.write(newest, self._writer, step)
