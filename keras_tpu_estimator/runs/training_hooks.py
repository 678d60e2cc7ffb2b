"""The hooks of every `train`, in their order, and its logged metrics."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import keras
import numpy as np

from keras_tpu_estimator.api.config import validation
from keras_tpu_estimator.api.config.run_config import RunConfig
from keras_tpu_estimator.api.hooks.callback_hook import callbacks_of
from keras_tpu_estimator.api.hooks.checkpoint_saver import (
    CheckpointSaverHook,
    CheckpointSaverListener,
)
from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.api.hooks.stopping import NanLossHook
from keras_tpu_estimator.api.hooks.summary_saver import (
    RecordedSummariesHook,
    TrainingLogHook,
)
from keras_tpu_estimator.api.hooks.tensorflow_hook import TensorFlowSaverHook
from keras_tpu_estimator.api.model_fn.spec_checks import OwnNames
from keras_tpu_estimator.base.common import notebook
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.files.summary.metric_writers import warn_if_autologging
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.loop_state import LoopState
from keras_tpu_estimator.runs.outfeed import TrainingMetrics
from keras_tpu_estimator.runs.staging import StagedInput

_logger = logging.getLogger("keras_tpu_estimator")


def is_saving(config: RunConfig) -> bool:
    """Returns whether a configuration saves checkpoints."""
    return bool(config.save_checkpoints_steps or config.save_checkpoints_secs)


def training_hooks(
    context: EstimatorContext,
    progress: LoopState,
    listeners: Sequence[CheckpointSaverListener],
    user: Iterable[Hook],
    step: Step,
    log: TrainingLogHook | None,
) -> list[Hook]:
    """Returns the hooks of one `train`, in the order of their calls.

    The package's saver saves a step after the other hooks were called for it.

    Args:
        progress: The loop's state, which has the last summaries of `model_fn`.
        listeners: Listeners to call around each checkpoint.
        user: The hooks that were passed to `train`.
        step: The step, with the hooks that `model_fn` returned.
        log: The hook that logs, or `None`.

    Raises:
        ValueError: There are listeners, but no hook saves checkpoints.
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
                _losses_only(context, progress, step),
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
    """Returns the hooks that save checkpoints."""
    kinds = CheckpointSaverHook | TensorFlowSaverHook
    return [hook for hook in hooks if isinstance(hook, kinds)]


def _own_saver(context: EstimatorContext) -> list[Hook]:
    """Returns the saver for a configuration that saves checkpoints."""
    config = context.config
    if not is_saving(config):
        return []
    saver = CheckpointSaverHook(
        context.model_dir,
        save_secs=config.save_checkpoints_secs or None,
        save_steps=config.save_checkpoints_steps or None,
    )
    # The checkpoint contains the changes of hooks and callbacks at its step.
    saver.acts_last = True
    return [saver]


def _losses_only(
    context: EstimatorContext, progress: LoopState, step: Step
) -> Callable[[], np.ndarray] | None:
    """Returns a function for the losses of a loop, or `None`.

    Summaries need only the losses if `model_fn` records nothing, and if the loss
    of a loop is the loss of its last step.
    """
    is_enough = context.iterations is None and step.counts_once
    if step.records or not is_enough:
        return None
    return lambda: progress.losses_of_steps


def _attach(
    listeners: Sequence[CheckpointSaverListener],
    savers: Sequence[CheckpointSaverHook | TensorFlowSaverHook],
) -> None:
    """Attaches the listeners to the first saver."""
    validation.check_listeners(listeners, is_saving=bool(savers))
    for index, saver in enumerate(savers):
        # The other savers drop the listeners of an earlier call.
        saver.tell_also(() if index else listeners)


# The names in the log, `metrics.jsonl` and the event file besides the metrics.
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
    """The numbers that one `train` logs at intervals."""

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
        """Returns numbers for the time since the last call, by name."""
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
        """Returns the hook that logs the numbers, or `None` if logging is off."""
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
