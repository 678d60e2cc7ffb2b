"""The hooks that accompany every `train`, in the order they are called."""

import logging
import os
from collections.abc import Iterable

import numpy as np

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.hooks.checkpoint_saver import CheckpointSaverHook
from keras_tpu_estimator.hooks.checkpoint_saver import CheckpointSaverListener
from keras_tpu_estimator.hooks.nan_tensor import NanTensorHook
from keras_tpu_estimator.hooks.recorded_summaries import RecordedSummariesHook
from keras_tpu_estimator.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.hooks.step_counter import StepCounterHook
from keras_tpu_estimator.loops.progress import Progress
from keras_tpu_estimator.run_config import RunConfig
from keras_tpu_estimator.runtime import Runtime
from keras_tpu_estimator.summary import EventWriter

_logger = logging.getLogger("keras_tpu_estimator")


class Saver:
    """Writes a training loop's checkpoints and remembers the last one.

    Args:
        config: Where, and how many to keep.
        runtime: Says which values belong into a checkpoint.
        progress: The loop's current values.
        checkpoint: The one that the loop starts from, or `None`.
    """

    def __init__(
        self,
        config: RunConfig,
        runtime: Runtime,
        progress: Progress,
        checkpoint: str | None,
    ):
        self._config = config
        self._runtime = runtime
        self._progress = progress
        self._last = checkpoint
        self._last_step = progress.step if checkpoint else None

    def save(self, step: int) -> None:
        """Writes a checkpoint, unless the loss has become NaN."""
        if step != self._last_step and np.isnan(self._progress.fetch("loss")):
            if self._last_step is not None:
                return
        directory = self._config.model_dir
        _logger.info(
            "Saving checkpoints for %d into %s.",
            step,
            os.path.join(directory, "model.ckpt"),
        )
        self._last = checkpoints.save(
            directory,
            step,
            self._runtime.to_save(self._progress.values),
            retention=checkpoints.Retention(
                self._config.keep_checkpoint_max,
                self._config.keep_checkpoint_every_n_hours,
            ),
        )
        self._last_step = step

    @property
    def start(self) -> int | None:
        """The step of the last checkpoint."""
        return self._last_step

    @property
    def current(self) -> str | None:
        """The checkpoint that holds the loop's values, if one does."""
        return self._last if self._last_step == self._progress.step else None


def is_saving(config: RunConfig) -> bool:
    """Whether a configuration asks for checkpoints."""
    return bool(config.save_checkpoints_steps or config.save_checkpoints_secs)


def training_hooks(
    config: RunConfig,
    saver: Saver,
    progress: Progress,
    listeners: Iterable[CheckpointSaverListener],
    user: Iterable[SessionRunHook],
    spec: Iterable[SessionRunHook],
    counter: StepCounterHook | None,
) -> list[SessionRunHook]:
    """The hooks of one `train`.

    Args:
        config: What is saved, and how often.
        saver: Writes checkpoints.
        progress: Knows what `model_fn` recorded last.
        listeners: Called around each checkpoint.
        user: What was passed to `train`.
        spec: What `model_fn` returned.
        counter: Logs, or `None`.

    Returns:
        All of them, in the order they are called.
    """
    hooks: list[SessionRunHook] = []
    if is_saving(config):
        hooks.append(
            CheckpointSaverHook(
                saver.save,
                save_secs=config.save_checkpoints_secs or None,
                save_steps=config.save_checkpoints_steps or None,
                listeners=listeners,
                saved_step=saver.start,
            )
        )
    if config.save_summary_steps:
        writer = EventWriter.for_dir(config.model_dir)
        hooks.append(
            RecordedSummariesHook(
                writer, config.save_summary_steps, lambda: progress.summaries
            )
        )
    hooks += [*user, NanTensorHook(), *spec]
    if counter is not None:
        hooks.append(counter)
    return hooks
