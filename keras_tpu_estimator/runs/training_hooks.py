"""The hooks of every `train`, in their order, and their session."""

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_tpu_estimator.api.config import validation
from keras_tpu_estimator.api.config.run_config import RunConfig
from keras_tpu_estimator.api.hooks.callback_hook import callbacks_of
from keras_tpu_estimator.api.hooks.checkpoint_saver import (
    CheckpointSaverHook,
    CheckpointSaverListener,
    SavingHook,
)
from keras_tpu_estimator.api.hooks.loop_results import LoopResults
from keras_tpu_estimator.api.hooks.session import (
    MetricCounts,
    Session,
    T,
    check_retention,
)
from keras_tpu_estimator.api.hooks.session_run_hook import Hook, LoopHook
from keras_tpu_estimator.api.hooks.stopping import NanLossHook
from keras_tpu_estimator.api.hooks.summary_saver import (
    RecordedSummariesHook,
    TrainingLogHook,
)
from keras_tpu_estimator.api.model_fn.spec_checks import OwnNames
from keras_tpu_estimator.base.common import notebook
from keras_tpu_estimator.base.common.ledger import stepping
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import InputFn, PathLike
from keras_tpu_estimator.base.hosts.host_exchange import HostExchange
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.engine.device.run_state import RunState, Version
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.files.directory.location import name_for
from keras_tpu_estimator.files.directory.retention import (
    KeepBest,
    Retention,
    note,
    would_be_best,
)
from keras_tpu_estimator.files.summary.metric_writer import SeveralWriters
from keras_tpu_estimator.files.summary.metric_writers import warn_if_autologging
from keras_tpu_estimator.runs.batch_runs import BatchRuns
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.evaluation import Evaluation
from keras_tpu_estimator.runs.loop_state import LiveModel, LoopState
from keras_tpu_estimator.runs.outfeed import TrainingMetrics
from keras_tpu_estimator.runs.plan import LoopPlan, StepCounting
from keras_tpu_estimator.runs.position_saver import PositionSaver, Start
from keras_tpu_estimator.runs.preemption import Preemption
from keras_tpu_estimator.runs.run_ledger import run_in
from keras_tpu_estimator.runs.saver import Saver
from keras_tpu_estimator.runs.staging import StagedInput

_logger = logging.getLogger("keras_tpu_estimator")


def is_saving(config: RunConfig) -> bool:
    """Returns whether a configuration saves checkpoints."""
    return bool(config.save_checkpoints_steps or config.save_checkpoints_secs)


def training_hooks(
    context: EstimatorContext,
    listeners: Sequence[CheckpointSaverListener],
    user: Iterable[Hook],
    step: Step,
    log: TrainingLogHook | None,
    writer: SeveralWriters,
) -> list[Hook]:
    """Returns the hooks of one `train`, in the order of their calls.

    The package's saver saves a step after the other hooks were called for it, but
    before TensorFlow hooks that may read the checkpoint. It raises `ValueError` if
    there are listeners, but no hook saves checkpoints.
    """
    config = context.config
    user, spec = tuple(user), step.hooks
    hooks: list[Hook] = [] if savers_among((*user, *spec)) else _own_saver(context)
    savers = savers_among((*hooks, *user, *spec))
    _attach(listeners, savers)
    _let_read(savers, (*user, *spec))
    if config.save_summary_steps and context.hosts.is_chief:
        warn_if_autologging(config.metric_writers)
        hooks.append(
            RecordedSummariesHook(
                writer,
                config.save_summary_steps,
                only_losses=_needs_only_losses(context, step),
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


def savers_among(hooks: Iterable[Hook]) -> list[SavingHook]:
    """Returns the hooks that save checkpoints."""
    return [hook for hook in hooks if isinstance(hook, SavingHook)]


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


def _let_read(savers: Sequence[SavingHook], hooks: Sequence[Hook]) -> None:
    """Makes savers act in their order among hooks that may read checkpoints.

    As in TensorFlow, such hooks are called for a step when its checkpoint exists.
    """
    readers = [h for h in hooks if isinstance(h, LoopHook) and h.may_read_saves]
    if not readers:
        return
    for reader in readers:
        reader.acts_last = True
    for saver in savers:
        saver.acts_last = True
        if isinstance(saver, CheckpointSaverHook):
            saver.is_read_by_hooks = True


def _needs_only_losses(context: EstimatorContext, step: Step) -> bool:
    """Returns whether the summaries of a loop are the losses of its steps.

    That is so if `model_fn` records nothing, and if the loss of a loop is the loss of
    its last step.
    """
    counts_once = step.additions.counts_once
    return context.iterations is None and counts_once and not step.records


def _attach(
    listeners: Sequence[CheckpointSaverListener],
    savers: Sequence[SavingHook],
) -> None:
    """Attaches the listeners to the first saver."""
    validation.check_listeners(listeners, is_saving=bool(savers))
    for index, saver in enumerate(savers):
        # The other savers drop the listeners of an earlier call.
        saver.set_listeners(() if index else listeners)


# The names in the log, `metrics.jsonl` and the event file besides the metrics.
REPORT_NAMES = OwnNames(
    "a report of training has",
    (
        "loss",
        "step",
        "global_step",
        "time",
        "start",
        "restarts",
        "learning_rate",
        "learning_rate/*",
        "input_wait",
        "time/*",
        "global_step/sec",
        "examples/sec",
    ),
)


class TrainingReport:
    """The numbers that one `train` logs at intervals."""

    def __init__(
        self, infeed: StagedInput, metrics: TrainingMetrics, writer: SeveralWriters
    ):
        self._infeed = infeed
        self._writer = writer
        self._metrics = metrics.counts()
        self._reported_at = time.monotonic()

    def numbers(self, results: LoopResults) -> dict[str, float]:
        """Returns numbers for the time since the last call, by name."""
        now = time.monotonic()
        numbers = {
            name: float(np.asarray(value)) for name, value in results.reports.items()
        }
        elapsed = max(now - self._reported_at, 1e-9)
        numbers["input_wait"] = self._infeed.take_waited_secs() / elapsed
        self._reported_at = now
        for name, value in self._metrics.result().items():
            if np.ndim(value) == 0:
                numbers[name] = value
        self._metrics.reset()
        return numbers

    def is_written(self, context: EstimatorContext) -> bool:
        """Returns whether metric writers receive the numbers."""
        config, is_chief = context.config, context.hosts.is_chief
        return bool(context.log_every and config.save_summary_steps and is_chief)

    def write_times(self, context: EstimatorContext, step: int) -> None:
        """Writes the times of all runs, after the last checkpoint."""
        if self.is_written(context):
            seconds = run_in(context.model_dir).table().scalars()
            omits_events = context.front_end.has_original_summaries
            self._writer.write_times(step, seconds, omits_events)

    def hook(self, context: EstimatorContext) -> TrainingLogHook | None:
        """Returns the hook that logs the numbers, or `None` if logging is off."""
        if context.log_every is None:
            return None
        loops = context.iterations
        secs = loops.value if loops and loops.unit == "seconds" else None
        return TrainingLogHook(
            batch_size=context.mode_devices.batch_sizes[ModeKeys.TRAIN],
            report=self.numbers,
            writer=self._writer if self.is_written(context) else None,
            is_brief=notebook.is_here(),
            every_n_steps=context.log_every if secs is None else None,
            every_n_secs=secs,
        )


@dataclasses.dataclass(frozen=True)
class TrainingCall:
    """The objects that belong to one call of `train`, in the order of their creation.

    `steps` is the number of steps of the call, or `None` for all of the input.
    """

    exchange: HostExchange
    preemption: Preemption
    start: Start
    steps: int | None
    plan: LoopPlan
    counting: StepCounting
    infeed: StagedInput
    positions: PositionSaver


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """The evaluations of a training's values, for the training estimator only.

    `validation` is the evaluation at the end of each epoch, or `None`.
    """

    estimator: Any
    evaluation: Callable[..., Evaluation]
    validation: Evaluation | None


@dataclasses.dataclass(frozen=True)
class Candidate:
    """The values of a step, with a result for `KeepBest`."""

    keep: KeepBest
    directory: str
    step: int
    result: Mapping[str, Any]

    @property
    def prefix(self) -> str:
        """The prefix of the step's checkpoint."""
        return name_for(self.step, os.path.join(self.directory, "model.ckpt"))

    def would_be_best(self) -> bool:
        """Returns whether the checkpoint would be the best one of the directory."""
        name = os.path.basename(self.prefix)
        return would_be_best(self.keep, self.directory, name, self.result)


class TrainingSession(Session):
    """A session whose values can be saved and evaluated."""

    def __init__(
        self,
        context: EstimatorContext,
        loop_state: LoopState,
        step: Step,
        saver: Saver,
        evaluator: Evaluator,
        metrics: TrainingMetrics,
        call: TrainingCall,
    ):
        live = LiveModel(context, loop_state)
        super().__init__(
            live.fetch, live, loop_state.wait, step.additions.graph, loop_state
        )
        self._context = context
        self._runtime = context.runtime
        self._loop_state = loop_state
        self._step = step
        self._saver = saver
        self._best: Candidate | None = None
        self._evaluator = evaluator
        self._training_metrics = metrics
        self._positions = call.positions
        self._exchange = call.exchange
        # The names of actions that are due by this host's clock, and of those
        # that were due on any host when hosts last agreed.
        self.due_here: set[str] = set()
        self.due_anywhere: frozenset[str] = frozenset()
        self._validated: dict[Version, dict[str, Any]] = {}
        self.batch_runs: BatchRuns | None = None

    @stepping
    def run(self, fetches: Any) -> Any:
        """Returns the values of names, for which it waits for the devices."""
        return super().run(fetches)

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal has asked the process to stop."""
        return self._positions.is_interrupted()

    @property
    def last_step(self) -> int | None:
        """The global step to stop at, or `None` if it is unknown."""
        return self._loop_state.last_step

    def seconds_since_run(self) -> float:
        """Waits for the last run, and returns the seconds since it was complete."""
        self._loop_state.wait()
        return time.monotonic() - self._loop_state.completed_at

    def run_on_batch(self, operations: Sequence[str]) -> dict[str, Any]:
        """Runs operations on the next batch of the input."""
        if self.batch_runs is None:
            return super().run_on_batch(operations)
        return self.batch_runs.run(operations)

    def is_so_anywhere(self, is_so: bool) -> bool:
        """Returns whether a condition is true on any host. All hosts must call this."""
        return self._exchange.any(is_so, "session.is_so_anywhere")

    def is_due_anywhere(self, name: str, is_due: bool) -> bool:
        """Returns whether an action is due here, or was anywhere after the last run."""
        if not self._exchange.is_with_others:
            return is_due
        if name in self.due_anywhere:
            return True
        if is_due:
            self.due_here.add(name)
        return False

    def by_chief(self, action: Callable[[], T]) -> T:
        """Runs an action only on the chief, while the other hosts wait."""
        return self._exchange.by_chief(action, "session.by_chief")

    def saved_step(self, directory: PathLike) -> int | None:
        """Returns the step of this session's last checkpoint in a directory."""
        return self._saver.saved_step(directory)

    def save_checkpoint(
        self,
        directory: PathLike,
        basename: str = "model.ckpt",
        wait: bool = True,
        retention: Retention | None = None,
    ) -> None:
        """Writes the current values into a checkpoint."""
        check_retention(retention)
        # All hosts save, after comparing assigned values.
        self._exchange.barrier("session.save_checkpoint")
        self._saver.save(directory, basename, retention)
        if self.wants_checkpoint(directory):
            path = os.path.join(os.fsdecode(directory), basename)
            self._note_best(name_for(self._loop_state.values.step, path))
        elif wait:
            self._saver.wait()

    def explain_nan(self) -> str:
        """Returns the known facts about the first NaN of the last run, as a text."""
        facts = []
        step = self._loop_state.results.first_nan_step()
        if step is not None:
            facts.append(f"The loss is NaN since step {step}.")
        bad = [p for p in self._paths if not _is_finite(self.run(p))]
        if bad:
            facts.append(f"The first variable that is not finite is {bad[0]!r}.")
        return " ".join(facts)

    @property
    def _paths(self) -> list[str]:
        """The paths of the variables, in the order of creation."""
        variables = self._runtime.program.store.variables
        return [path for path in variables if path in self._loop_state.values]

    def evaluate(
        self,
        estimator: Any,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Iterable[Hook] | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates the current values, for the training estimator only."""
        if estimator is not self._evaluator.estimator:
            raise ValueError(
                "The estimator that evaluates values in memory must be the one "
                f"that trains them, of {self._evaluator.estimator.model_dir!r}. "
                f"Received: {shown(getattr(estimator, 'model_dir', estimator))}. "
                "Pass the training estimator, or evaluate a checkpoint."
            )
        return self._run(self._evaluator.evaluation(input_fn, steps, hooks, name))

    def count_metrics(self) -> MetricCounts:
        """Returns separate counts of the metrics of training."""
        return self._training_metrics.counts()

    def validate(self) -> dict[str, Any]:
        """Returns the result of `train(validation=...)` for the current values."""
        if self._evaluator.validation is None:
            return {}
        # Epochs of several hooks may end here.
        version = self._loop_state.values.version
        if version not in self._validated:
            result = self._run(self._evaluator.validation)
            self._validated = {version: result}
            self._compare(result)
        return self._validated[version]

    def wants_checkpoint(self, directory: PathLike) -> bool:
        """Returns whether the current values have the best result of `validate`."""
        best = self._best
        if best is None or best.step != self._loop_state.values.step:
            return False
        return paths.canonical(os.fsdecode(directory)) == paths.canonical(
            best.directory
        )

    def _compare(self, result: Mapping[str, Any]) -> None:
        """Marks the current values if `KeepBest` prefers them to earlier ones."""
        keep, directory = self._context.config.keep_best, self._context.model_dir
        if keep is None or keep.name is not None:
            return
        new = Candidate(keep, directory, self._loop_state.values.step, result)
        is_best = self._exchange.from_chief(new.would_be_best)
        self._best = new if is_best else None
        if is_best and self.saved_step(directory) == new.step:
            self._note_best(new.prefix)

    def _note_best(self, prefix: str) -> None:
        """Records that a checkpoint has the best values, once it is complete."""
        best = self._best
        self._saver.wait()
        if best is not None:
            self.by_chief(lambda: note(best.keep, best.directory, prefix, best.result))

    def _run(self, evaluation: Evaluation) -> dict[str, Any]:
        def current(
            step: Step, slots: bool
        ) -> contextlib.AbstractContextManager[RunState]:
            del slots  # Training has all optimizer state.
            values = self._loop_state.values
            return contextlib.nullcontext(
                self._runtime.values.of_training(step, values, self._step)
            )

        return evaluation.run(current)


def _is_finite(value: np.ndarray) -> bool:
    if not keras.backend.is_float_dtype(value.dtype):
        return True
    return bool(np.all(np.isfinite(value.astype("float32"))))
