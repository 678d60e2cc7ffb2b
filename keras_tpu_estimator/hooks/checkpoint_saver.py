"""Saving checkpoints, and telling others about it."""

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from keras_tpu_estimator.hooks.session_run_hook import Session
from keras_tpu_estimator.hooks.session_run_hook import SessionRunContext
from keras_tpu_estimator.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.hooks.session_run_hook import SessionRunValues
from keras_tpu_estimator.hooks.timer import SecondOrStepTimer


class CheckpointSaverListener:
    """User code that is called around every checkpoint.

    The counterpart of `tf.compat.v1.train.CheckpointSaverListener`; override
    what is needed.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> class Announce(kte.hooks.CheckpointSaverListener):
    ...     def after_save(self, session, global_step_value):
    ...         print(f"saved step {global_step_value}")
    """

    def begin(self) -> None:
        """Called once, before the first checkpoint."""

    def before_save(self, session: Session, global_step_value: int) -> None:
        """Called before each checkpoint is written."""

    def after_save(
        self, session: Session, global_step_value: int
    ) -> bool | None:
        """Called after each checkpoint; returning `True` ends training."""

    def end(self, session: Session, global_step_value: int) -> None:
        """Called once, after the last checkpoint."""


def validate_listeners(
    listeners: Iterable[CheckpointSaverListener] | None,
) -> tuple[CheckpointSaverListener, ...]:
    """Returns listeners as a tuple.

    Raises:
        TypeError: One of them is no `CheckpointSaverListener`.
    """
    checked = tuple(listeners or ())
    for listener in checked:
        if not isinstance(listener, CheckpointSaverListener):
            raise TypeError(
                "saving_listeners must be CheckpointSaverListener instances. "
                f"Received: {listener!r} of type {type(listener).__name__}. "
                "Derive it from "
                "keras_tpu_estimator.hooks.CheckpointSaverListener."
            )
    return checked


class CheckpointSaverHook(SessionRunHook):
    """Saves at the start, every so often, and at the end of training.

    Args:
        save: Called with the global step; writes the checkpoint.
        save_secs: Seconds between checkpoints, or `None`.
        save_steps: Steps between checkpoints, or `None`.
        listeners: Called around each checkpoint. Defaults to none.
        saved_step: The step of the checkpoint that training starts from,
            which is not written again. Defaults to `None`.
    """

    def __init__(
        self,
        save: Callable[[int], None],
        save_secs: float | None = None,
        save_steps: int | None = None,
        listeners: Iterable[CheckpointSaverListener] = (),
        saved_step: int | None = None,
    ):
        self._save_checkpoint = save
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._listeners = tuple(listeners)
        self._saved_step = saved_step

    def begin(self) -> None:
        """Tells the listeners."""
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Saves, so that a killed run can start from the same values."""
        del coord
        step = int(session.run("global_step"))
        self._timer.update_last_triggered_step(step)
        if step != self._saved_step:
            self._save(session, step)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Saves if it is time."""
        del run_values
        step = int(run_context.session.run("global_step"))
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            if self._save(run_context.session, step):
                run_context.request_stop()

    def end(self, session: Session) -> None:
        """Saves the last step, if it has not been."""
        step = int(session.run("global_step"))
        if step != self._saved_step:
            self._save(session, step)
        for listener in self._listeners:
            listener.end(session, step)

    def _save(self, session: Session, step: int) -> bool:
        for listener in self._listeners:
            listener.before_save(session, step)
        self._save_checkpoint(step)
        self._saved_step = step
        answers = [
            listener.after_save(session, step) for listener in self._listeners
        ]
        return any(answers)
