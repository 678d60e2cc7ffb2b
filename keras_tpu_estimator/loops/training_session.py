"""What hooks may ask of `train`, beside values."""

import os
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from keras_tpu_estimator.hooks.session_run_hook import Hook
from keras_tpu_estimator.hooks.session_run_hook import Session
from keras_tpu_estimator.loops.live_model import LiveModel
from keras_tpu_estimator.loops.progress import Progress
from keras_tpu_estimator.loops.training_hooks import Saver
from keras_tpu_estimator.modes import ModeKeys
from keras_tpu_estimator.runtime import Runtime

Evaluate = Callable[..., dict[str, Any]]


class TrainingSession(Session):
    """A session whose values can be saved and evaluated.

    Args:
        runtime: The model.
        progress: The loop's current values.
        saver: Writes them.
        estimator: Who trains.
        evaluate: Evaluates them; called with the arguments of `evaluate`.
    """

    def __init__(
        self,
        runtime: Runtime,
        progress: Progress,
        saver: Saver,
        estimator: Any,
        evaluate: Evaluate,
    ):
        live = LiveModel(runtime, progress, ModeKeys.TRAIN)
        super().__init__(progress.fetch, live)
        self._saver = saver
        self._estimator = estimator
        self._evaluate = evaluate

    def saved_step(self, directory: str | os.PathLike) -> int | None:
        """The step of this session's last checkpoint in a directory."""
        return self._saver.saved_step(directory)

    def save_checkpoint(
        self, directory: str | os.PathLike, basename: str = "model.ckpt"
    ) -> None:
        """Writes the current values into a checkpoint."""
        self._saver.save(directory, basename)

    def evaluate(
        self,
        estimator: Any,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Iterable[Hook] | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates the current values, without a checkpoint.

        Raises:
            ValueError: Another estimator is to evaluate them.
        """
        if estimator is not self._estimator:
            raise ValueError(
                "Values in memory are evaluated by the estimator that trains "
                f"them, {self._estimator!r}. Received: {estimator!r}. Pass "
                "the former, or evaluate a checkpoint with the latter."
            )
        return self._evaluate(input_fn, steps, hooks, name)
