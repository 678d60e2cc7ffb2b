"""Listeners of TensorFlow's own class, as listeners of this package."""

from typing import Any

from keras_tpu_estimator.spec.hooks.checkpoint_saver import (
    CheckpointSaverListener,
)
from keras_tpu_estimator.spec.hooks.graph_session import graph_session
from keras_tpu_estimator.spec.hooks.session import Session


class TensorFlowListener(CheckpointSaverListener):
    """A listener of TensorFlow's class."""

    def __init__(self, listener: Any):
        self.listener = listener

    def begin(self) -> None:
        """Calls the listener."""
        self.listener.begin()

    def before_save(self, session: Session, global_step_value: int) -> None:
        """Calls the listener."""
        own = graph_session(session)
        self.listener.before_save(own, global_step_value)

    def after_save(
        self, session: Session, global_step_value: int
    ) -> bool | None:
        """Calls the listener."""
        own = graph_session(session)
        stops: bool | None = self.listener.after_save(own, global_step_value)
        return stops

    def end(self, session: Session, global_step_value: int) -> None:
        """Calls the listener."""
        self.listener.end(graph_session(session), global_step_value)
