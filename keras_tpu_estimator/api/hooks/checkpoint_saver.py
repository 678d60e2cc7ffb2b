"""Hooks that save checkpoints, and their listeners."""

import os
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import (
    LoopHook,
    SessionRunContext,
    SessionRunValues,
)
from keras_tpu_estimator.api.hooks.timer import SecondOrStepTimer
from keras_tpu_estimator.base.common.field_checks import tuple_of
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.directory.retention import Retention


class CheckpointSaverListener:
    """User code that is called around every checkpoint.

    The counterpart of `tf.compat.v1.train.CheckpointSaverListener`. Override
    the methods that you need.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> class Announce(kte.hooks.CheckpointSaverListener):
    ...     def after_save(self, session, global_step_value):
    ...         print(f"saved step {global_step_value}")
    """

    def begin(self) -> None:
        """Called once, before the first checkpoint."""

    def before_save(self, session: Session, global_step_value: int) -> None:
        """Called before each checkpoint is written, and for the one that training
        resumes from.
        """

    def after_save(self, session: Session, global_step_value: int) -> bool | None:
        """Called after each of these; returning `True` ends training."""

    def end(self, session: Session, global_step_value: int) -> None:
        """Called once, after the last checkpoint."""


class GraphListener(CheckpointSaverListener):
    """A listener that needs the session's graph in `begin`."""

    def open(self, session: Session) -> None:
        """Called before `begin`."""


def check_listeners(
    listeners: Iterable[CheckpointSaverListener] | None,
    argument: str,
) -> tuple[CheckpointSaverListener, ...]:
    """Returns listeners as a tuple."""
    checked = tuple_of(argument, listeners, CheckpointSaverListener, "listener")
    for listener in checked:
        if not isinstance(listener, CheckpointSaverListener):
            raise TypeError(
                f"{argument} must be CheckpointSaverListener instances. "
                f"Received: {shown(listener)}. "
                "Derive it from "
                "keras_tpu_estimator.hooks.CheckpointSaverListener."
            )
    return checked


@runtime_checkable
class SavingHook(Protocol):
    """A hook that saves checkpoints in training, and calls listeners."""

    acts_last: bool

    def set_listeners(self, listeners: Iterable[CheckpointSaverListener]) -> None:
        """Sets additional listeners, which replace those of an earlier call."""


class CheckpointSaverHook(LoopHook):
    """A hook that saves at the start, periodically, and at the end of training.

    Training makes such a hook according to `RunConfig`, unless one is among the
    hooks of `train` or of the spec. Training's own hook saves a step after all
    hooks and callbacks have been called for it. A user's hook is called in the
    order of the list, so that its checkpoint lacks the effects of later hooks.
    Otherwise both write the same checkpoints. The checkpoint that training
    starts from is not written again. The counterpart of
    `tf.compat.v1.train.CheckpointSaverHook`.

    Training waits only until the values are copied off the devices, and for an
    earlier checkpoint that is still being written. With listeners, it waits
    until the checkpoint is on the disk.

    Args:
        checkpoint_dir: The directory of the checkpoints, created if missing.
        save_secs: Seconds between checkpoints. Defaults to `None`.
        save_steps: Steps between checkpoints. Defaults to `None`.
        saver: A `kte.checkpoints.Retention`, the checkpoints to keep in the
            directory. The session saves, so no other setting of the original's
            saver exists. Defaults to `None`, for those of `RunConfig`.
        checkpoint_basename: Prefix of the names of checkpoints. Defaults to
            `'model.ckpt'`.
        listeners: `CheckpointSaverListener`s, called around each checkpoint.
            Defaults to none.
        scaffold: Accepted; has no effect.
        save_graph_def: Accepted; has no effect, because no graph exists.

    Raises:
        ValueError: Not exactly one interval is given, or `saver` is another
            object.
        TypeError: `listeners` is not a list of `CheckpointSaverListener`s.
        RuntimeError: From `after_create_session`, in `evaluate` or `predict`.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> hook = kte.hooks.CheckpointSaverHook(tempfile.mkdtemp(), save_steps=50)
    """

    # Whether later hooks may read each checkpoint when they are called for its step.
    is_read_by_hooks = False

    def __init__(  # noqa: PLR0913 - the original's arguments
        self,
        checkpoint_dir: PathLike,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Retention | None = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Any = None,
        listeners: Iterable[CheckpointSaverListener] | None = None,
        save_graph_def: bool = True,
    ):
        del save_graph_def
        if saver is not None and not isinstance(saver, Retention):
            raise ValueError(
                "`saver` must be a kte.checkpoints.Retention or None, because the "
                f"session saves. Received: {saver!r}. Pass Retention(max_to_keep)."
            )
        self._retention = saver
        paths.check_name("`checkpoint_basename`", checkpoint_basename)
        self._directory = os.fsdecode(checkpoint_dir)
        self._basename = checkpoint_basename
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._own_listeners = check_listeners(listeners, "listeners")
        self._listeners = _each_once(self._own_listeners)

    def set_listeners(self, listeners: Iterable[CheckpointSaverListener]) -> None:
        """Sets additional listeners, which replace those of an earlier call."""
        self._listeners = _each_once((*self._own_listeners, *listeners))

    def due_steps(self, start: int) -> Iterable[int]:
        """Returns the steps after which it saves, if it counts steps."""
        return self._timer.steps_from(start)

    def open(self, session: Session) -> None:
        """Passes the session to listeners that make operations in its graph."""
        super().open(session)
        for listener in self._listeners:
            if isinstance(listener, GraphListener):
                listener.open(session)

    def begin(self) -> None:
        """Calls the listeners' `begin`."""
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Saves, so that a killed run can restart from the same values.

        The checkpoint that training resumes from is not written again. As in the
        original, listeners are also called for it.
        """
        del coord
        step = session.results.step
        self._timer.update_last_triggered_step(step)
        self._save(session, step)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Saves if the interval has passed."""
        del run_values
        session = run_context.session
        # Raises the error of the last save as soon as it is known.
        session.saved_step(self._directory)
        step = session.results.step
        is_due = self._timer.should_trigger_for_step(step)
        is_wanted = session.wants_checkpoint(self._directory)
        if self.acts_last and not self.is_read_by_hooks:
            # The end of training saves the last step, after the callbacks.
            is_last = run_context.stop_requested or step == session.last_step
            is_due, is_wanted = is_due and not is_last, is_wanted and not is_last
        if self._timer.counts_seconds:
            # The clocks of processes differ; their steps do not.
            name = f"{self._directory}/{self._basename}"
            is_due = session.is_due_anywhere(name, is_due)
        if is_due or is_wanted:
            self._timer.update_last_triggered_step(step)
            if self._save_once(session, step):
                run_context.request_stop()

    def close(self, session: Session) -> None:
        """Saves the state to resume from, before callbacks end."""
        if session.is_interrupted:
            self._save_once(session, session.results.step)

    def end(self, session: Session) -> None:
        """Saves the last step, if it is not saved yet."""
        step = session.results.step
        if not session.is_interrupted:
            self._save_once(session, step)
        for listener in self._listeners:
            listener.end(session, step)

    def _save_once(self, session: Session, step: int) -> bool:
        """Saves once a step; returns whether a listener asks to stop."""
        return session.saved_step(self._directory) != step and self._save(session, step)

    def _save(self, session: Session, step: int) -> bool:
        """Saves, unless the step is saved; returns whether a listener asks to stop."""
        for listener in self._listeners:
            listener.before_save(session, step)
        if session.saved_step(self._directory) != step:
            session.save_checkpoint(
                self._directory,
                self._basename,
                # Listeners and such hooks are called only for an existing checkpoint.
                wait=bool(self._listeners) or self.is_read_by_hooks,
                retention=self._retention,
            )
        if session.saved_step(self._directory) != step:
            return False  # The loss is NaN, which another hook reports.
        answers = [listener.after_save(session, step) for listener in self._listeners]
        return any(answers)


def _each_once(
    listeners: Iterable[CheckpointSaverListener],
) -> tuple[CheckpointSaverListener, ...]:
    # Listeners are compared by identity, because dataclasses may be equal.
    return tuple({id(listener): listener for listener in listeners}.values())
