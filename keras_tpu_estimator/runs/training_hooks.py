"""The hooks that accompany every `train`, in the order they are called."""

import logging
from collections.abc import Iterable
from collections.abc import Sequence

import keras

from keras_tpu_estimator.files.summary import EventWriter
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.loop_state import LoopState
from keras_tpu_estimator.spec.config import validation
from keras_tpu_estimator.spec.config.run_config import RunConfig
from keras_tpu_estimator.spec.hooks.callback_hook import callbacks_of
from keras_tpu_estimator.spec.hooks.checkpoint_saver import CheckpointSaverHook
from keras_tpu_estimator.spec.hooks.checkpoint_saver import (
    CheckpointSaverListener,
)
from keras_tpu_estimator.spec.hooks.nan_tensor import NanLossHook
from keras_tpu_estimator.spec.hooks.recorded_summaries import (
    RecordedSummariesHook,
)
from keras_tpu_estimator.spec.hooks.session_run_hook import Hook
from keras_tpu_estimator.spec.hooks.training_log import TrainingLogHook

_logger = logging.getLogger("keras_tpu_estimator")


def is_saving(config: RunConfig) -> bool:
    """Whether a configuration asks for checkpoints."""
    return bool(config.save_checkpoints_steps or config.save_checkpoints_secs)


def training_hooks(
    context: EstimatorContext,
    progress: LoopState,
    listeners: Sequence[CheckpointSaverListener],
    user: Iterable[Hook],
    spec: Iterable[Hook],
    log: TrainingLogHook | None,
) -> list[Hook]:
    """The hooks of one `train`.

    Args:
        context: Says what is saved, where, and how often.
        progress: Knows what `model_fn` recorded last.
        listeners: Called around each checkpoint.
        user: What was passed to `train`.
        spec: What `model_fn` returned.
        log: Logs, or `None`.

    Returns:
        All of them, in the order they are called.

    Raises:
        ValueError: There are listeners, and nothing is saved.
    """
    config = context.config
    user, spec = tuple(user), tuple(spec)
    hooks: list[Hook] = (
        [] if savers_among((*user, *spec)) else _own_saver(context)
    )
    _attach(listeners, savers_among((*hooks, *user, *spec)))
    if config.save_summary_steps and context.hosts.is_chief:
        writer = EventWriter.for_dir(context.model_dir)
        hooks.append(
            RecordedSummariesHook(
                writer, config.save_summary_steps, lambda: progress.summaries
            )
        )
    callbacks = callbacks_of([*user, *spec])
    if any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks):
        hooks += [*user, *spec]
    else:
        hooks += [*user, NanLossHook(), *spec]
    if log is not None:
        hooks.append(log)
    return hooks


def savers_among(hooks: Iterable[Hook]) -> list[CheckpointSaverHook]:
    """The hooks that save checkpoints."""
    return [hook for hook in hooks if isinstance(hook, CheckpointSaverHook)]


def _own_saver(context: EstimatorContext) -> list[Hook]:
    """What saves as a configuration says, if it asks for checkpoints."""
    config = context.config
    if not is_saving(config):
        return []
    return [
        CheckpointSaverHook(
            context.model_dir,
            save_secs=config.save_checkpoints_secs or None,
            save_steps=config.save_checkpoints_steps or None,
        )
    ]


def _attach(
    listeners: Sequence[CheckpointSaverListener],
    savers: Sequence[CheckpointSaverHook],
) -> None:
    """Has the first saver call the listeners."""
    validation.check_listeners(listeners, is_saving=bool(savers))
    for index, saver in enumerate(savers):
        # The others forget those of an earlier call.
        saver.tell_also(() if index else listeners)
