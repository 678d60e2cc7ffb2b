"""The hooks that accompany every `train`, in their order."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import keras
import numpy as np

from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.files.summary.metric_writers import warn_if_autologging
from keras_tpu_estimator.ground.base import notebook
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.loop_state import LoopState
from keras_tpu_estimator.runs.staging import StagedInput
from keras_tpu_estimator.runs.training_metrics import TrainingMetrics
from keras_tpu_estimator.spec.config import validation
from keras_tpu_estimator.spec.config.run_config import RunConfig
from keras_tpu_estimator.spec.hooks.callback_hook import callbacks_of
from keras_tpu_estimator.spec.hooks.checkpoint_saver import (
    CheckpointSaverHook,
    CheckpointSaverListener,
)
from keras_tpu_estimator.spec.hooks.nan_tensor import NanLossHook
from keras_tpu_estimator.spec.hooks.session_run_hook import Hook
from keras_tpu_estimator.spec.hooks.summary_saver import RecordedSummariesHook
from keras_tpu_estimator.spec.hooks.tensorflow_hook import TensorFlowSaverHook
from keras_tpu_estimator.spec.hooks.training_log import TrainingLogHook
from keras_tpu_estimator.spec.model_fn.spec_checks import OwnNames

_logger = logging.getLogger("keras_tpu_estimator")


def is_saving(config: RunConfig) -> bool:
    """Whether a configuration asks for checkpoints."""
    return bool(config.save_checkpoints_steps or config.save_checkpoints_secs)


def training_hooks(
    context: EstimatorContext,
    progress: LoopState,
    listeners: Sequence[CheckpointSaverListener],
    user: Iterable[Hook],
    step: Step,
    log: TrainingLogHook | None,
) -> list[Hook]:
    """The hooks of one `train`.

    Args:
        context: Says what is saved, where, and how often.
        progress: Knows what `model_fn` recorded last.
        listeners: Called around each checkpoint.
        user: What was passed to `train`.
        step: The step to make, with the hooks that `model_fn` returned.
        log: Logs, or `None`.

    Returns:
        All of them, in the order they are called; the own saver saves a step
        after the others were called for it.

    Raises:
        ValueError: There are listeners, and nothing is saved.
    """
    config = context.config
    user, spec = tuple(user), step.hooks
    hooks: list[Hook] = [] if savers_among((*user, *spec)) else _own_saver(context)
    _attach(listeners, savers_among((*hooks, *user, *spec)))
    if config.save_summary_steps and context.hosts.is_chief:
        warn_if_autologging(config.metric_writers)
        hooks.append(
            RecordedSummariesHook(
                context.metric_writer(),
                config.save_summary_steps,
                lambda: progress.summaries,
                _losses_alone(context, progress, step),
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


def savers_among(
    hooks: Iterable[Hook],
) -> list[CheckpointSaverHook | TensorFlowSaverHook]:
    """The hooks that save checkpoints."""
    kinds = CheckpointSaverHook | TensorFlowSaverHook
    return [hook for hook in hooks if isinstance(hook, kinds)]


def _own_saver(context: EstimatorContext) -> list[Hook]:
    """What saves as a configuration says, if it asks for checkpoints."""
    config = context.config
    if not is_saving(config):
        return []
    saver = CheckpointSaverHook(
        context.model_dir,
        save_secs=config.save_checkpoints_secs or None,
        save_steps=config.save_checkpoints_steps or None,
    )
    # What hooks and callbacks do at a step is in its checkpoint.
    saver.acts_last = True
    return [saver]


def _losses_alone(
    context: EstimatorContext, progress: LoopState, step: Step
) -> Callable[[], np.ndarray] | None:
    """Returns a function for the losses of a loop, or `None`.

    They are all that summaries need if `model_fn` records nothing, and if the
    loss of a loop is that of its last step.
    """
    is_enough = context.iterations is None and step.counts_once
    if step.records or not is_enough:
        return None
    return lambda: progress.losses_of_steps


def _attach(
    listeners: Sequence[CheckpointSaverListener],
    savers: Sequence[CheckpointSaverHook | TensorFlowSaverHook],
) -> None:
    """Has the first saver call the listeners."""
    validation.check_listeners(listeners, is_saving=bool(savers))
    for index, saver in enumerate(savers):
        # The others forget those of an earlier call.
        saver.tell_also(() if index else listeners)


# What the log, `metrics.jsonl` and the event file have beside the metrics.
REPORT_NAMES = OwnNames(
    "a report of training has",
    (
        "loss",
        "step",
        "global_step",
        "time",
        "learning_rate",
        "learning_rate/*",
        "input_wait",
        "global_step/sec",
        "examples/sec",
    ),
)


class TrainingReport:
    """What one `train` has to report from time to time.

    Args:
        progress: Where the loop is.
        infeed: Knows how long it was waited for.
        metrics: Counts the metrics.
    """

    def __init__(
        self,
        progress: LoopState,
        infeed: StagedInput,
        metrics: TrainingMetrics,
    ):
        self._loop_state = progress
        self._infeed = infeed
        self._metrics = metrics.counts()
        self._reported_at = time.monotonic()

    def numbers(self) -> dict[str, float]:
        """Numbers of the time since they were asked for last, by name."""
        now = time.monotonic()
        numbers = {
            name: float(np.asarray(value))
            for name, value in self._loop_state.reports.items()
        }
        elapsed = max(now - self._reported_at, 1e-9)
        numbers["input_wait"] = self._infeed.take_waited_secs() / elapsed
        self._reported_at = now
        for name, value in self._metrics.result().items():
            if np.ndim(value) == 0:
                numbers[name] = value
        self._metrics.reset()
        return numbers

    def hook(self, context: EstimatorContext) -> TrainingLogHook | None:
        """The hook that writes them, if a configuration asks for it."""
        if context.log_every is None:
            return None
        config = context.config
        iterations = config.tpu_config.iterations
        timed = iterations.unit == "seconds"
        writes = bool(config.save_summary_steps) and context.hosts.is_chief
        return TrainingLogHook(
            batch_size=context.mode_devices.batch_sizes[ModeKeys.TRAIN],
            report=self.numbers,
            writer=context.metric_writer() if writes else None,
            is_brief=notebook.is_here(),
            every_n_steps=None if timed else context.log_every,
            every_n_secs=iterations.value if timed else None,
        )
