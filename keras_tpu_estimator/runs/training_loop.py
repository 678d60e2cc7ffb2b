"""The runs of the device loop of one `train`, and all around them."""

import contextlib
import logging
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import Protocol

from keras_tpu_estimator.engine.device.run_state import Version
from keras_tpu_estimator.engine.inputs.infeed import Infeed
from keras_tpu_estimator.engine.program.steps import Outputs
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import InputFn
from keras_tpu_estimator.ground.hosts.host_exchange import HostExchange
from keras_tpu_estimator.keras_model.program_model import MetricsState
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.evaluation import Evaluation
from keras_tpu_estimator.runs.hooked_runs import run_hooked
from keras_tpu_estimator.runs.loop_state import TrainingState
from keras_tpu_estimator.runs.outfeed import EveryFewSteps
from keras_tpu_estimator.runs.outfeed import Outfeed
from keras_tpu_estimator.runs.outfeed import call_for_steps
from keras_tpu_estimator.runs.plan import LoopPlan
from keras_tpu_estimator.runs.position_saver import PositionSaver
from keras_tpu_estimator.runs.preemption import Preemption
from keras_tpu_estimator.runs.same_on_hosts import check_same_model
from keras_tpu_estimator.runs.same_on_hosts import compare_edits
from keras_tpu_estimator.runs.saver import Saver
from keras_tpu_estimator.runs.staging import StagedSteps
from keras_tpu_estimator.runs.staging import parts_of_loop
from keras_tpu_estimator.runs.training_hooks import REPORT_NAMES
from keras_tpu_estimator.runs.training_hooks import TrainingReport
from keras_tpu_estimator.runs.training_hooks import training_hooks
from keras_tpu_estimator.runs.training_session import TrainingSession
from keras_tpu_estimator.spec.hooks.callback_hook import with_callbacks
from keras_tpu_estimator.spec.hooks.callback_hook import with_epochs
from keras_tpu_estimator.spec.hooks.checkpoint_saver import (
    CheckpointSaverListener,
)
from keras_tpu_estimator.spec.hooks.hook_list import HookList
from keras_tpu_estimator.spec.hooks.progress_bar import ProgressBarHook
from keras_tpu_estimator.spec.hooks.progress_bar import shows_progress
from keras_tpu_estimator.spec.hooks.session_run_hook import Hook

_logger = logging.getLogger("keras_tpu_estimator")


class TrainingCall(Protocol):
    """What `train` was called with, as far as its loop has to know it."""

    @property
    def context(self) -> EstimatorContext:
        """The estimator's functions and settings."""

    @property
    def listeners(self) -> tuple[CheckpointSaverListener, ...]:
        """Called around each checkpoint."""

    @property
    def owner(self) -> Any:
        """The estimator, which hooks may ask to evaluate."""

    @property
    def evaluation(self) -> Callable[..., Evaluation]:
        """Makes an `Evaluation` of the arguments of `evaluate`."""

    @property
    def validation(self) -> Evaluation | None:
        """What to evaluate at the end of each epoch, or `None`."""


class TrainingLoop:
    """The runs of the device loop of one `train`, and all around them.

    Args:
        training: What `train` was called with.
        step: The step of TRAIN.
        plan: How many steps each run makes.
        infeed: The steps, on the devices.
        positions: Saves how far the input was read.
        call: With the other hosts.
        preemption: Knows of signals.
    """

    def __init__(
        self,
        training: TrainingCall,
        step: Step,
        plan: LoopPlan,
        infeed: Infeed[StagedSteps],
        positions: PositionSaver,
        call: HostExchange,
        preemption: Preemption,
    ):
        self._call = call
        self._preemption = preemption
        self._training = training
        self._context = training.context
        self._runtime = training.context.runtime
        self._step = step
        self._steps: dict[Any, Step] = {}
        self._none_counted = training.context.runtime.program.metrics_state()
        self._plan = plan
        self._infeed = infeed
        self._positions = positions
        self._metrics = self._context.host_metrics(step, REPORT_NAMES)
        self._summaries = EveryFewSteps(
            self._context.model_dir, self._context.config.save_summary_steps
        )
        self._outfeed = Outfeed(self._consume)
        self._validated: dict[Version, dict[str, Any]] = {}

    def run(
        self,
        first: StagedSteps,
        checkpoint: str | None,
        steps: int | None,
        hooks: tuple[Hook, ...],
    ) -> None:
        """Trains until the input, the plan or a hook ends it.

        Args:
            first: The first steps.
            checkpoint: Where training starts from, or `None`.
            steps: How many steps there will be, or `None` if that is open.
            hooks: Called around each run, before those of the spec.
        """
        kept = self._runtime.values.handed_over(self._step, checkpoint)
        with self._context.reading(kept) as values:
            self._loop_state = TrainingState(
                values, steps, is_mean=not self._plan.follows_hooks
            )
            check_same_model(self._call, values, is_new=checkpoint is None)
            compare_edits(self._call, values, "train")
            self._positions.start(values.step)
            self._saver = Saver(
                self._context, self._loop_state, self._positions
            )
            has_ended = False
            try:
                with self._saver:
                    hook_list = self._hook_list = self._hooks(hooks, steps)
                    start = values.step
                    self._plan.end_at(
                        end - start for end in hook_list.run_ends(start)
                    )
                    hook_list.begin()
                    hook_list.after_create_session()
                    with self._outfeed, self._call.told_of_errors():
                        run_hooked(
                            hook_list,
                            first,
                            self._infeed,
                            self._run_loop,
                            self._agree,
                            self._may_run_ahead(hook_list),
                        )
                    has_ended = True
                    self._positions.at_end()
                    hook_list.end()
                    # What was assigned last is compared, too.
                    self._call.barrier()
            finally:
                if has_ended:
                    self._positions.end(values.step)
        loss = float(self._loop_state.last_loss)
        _logger.info("Loss for final step: %.6g.", loss)

    def _agree(self, stops: bool) -> bool:
        """Whether all hosts stop, as hooks or a signal on one want."""
        return self._preemption.agree(self._call, stops)

    def _run_loop(self, first: StagedSteps, fetch: tuple[str, ...]) -> bool:
        """Runs the parts of one loop; whether it was the last."""
        steps = 0
        self._loop_state.start_loop()
        metrics = self._none_counted
        for staged in parts_of_loop(first, self._infeed):
            metrics = self._run_part(staged, metrics, fetch)
            steps += staged.stacked.steps
        self._plan.ran(steps)
        return self._plan.is_done

    def _run_part(
        self, staged: StagedSteps, metrics: MetricsState, fetch: tuple[str, ...]
    ) -> MetricsState:
        values = self._loop_state.values
        # The shape of a last, smaller batch is new, and its step with it.
        shapes = staged.shapes
        if shapes not in self._steps:
            self._steps[shapes] = staged.prepare(self._runtime)
        step = self._steps[shapes]
        # A hook may have evaluated, with variables that are new to the model.
        self._runtime.values.complete(values, step)
        assigned, metrics, losses, outputs = self._runtime.loop.run(
            step, values, metrics, staged.data, step.named_among(fetch)
        )
        self._context.hosts.ran()
        before = values.step
        values.update(assigned, staged.stacked.steps)
        self._loop_state.wait()
        self._hook_list.run_is_made()
        self._loop_state.ran(losses, outputs)
        if "host_call" in outputs or "train_metrics" in outputs:
            numbers = range(before + 1, values.step + 1)
            self._outfeed.put(outputs, numbers)
        return metrics

    def _consume(self, outputs: Outputs, numbers: Sequence[int]) -> None:
        """Runs the host's functions, on a thread of their own."""
        tpu_config = self._context.config.tpu_config
        if self._step.host_call is not None and self._context.hosts.is_chief:
            call_for_steps(
                self._step.host_call,
                outputs["host_call"],
                numbers,
                tpu_config.experimental_host_call_every_n_steps,
                self._summaries,
            )
        if self._metrics is not None:
            self._metrics.update(outputs["train_metrics"])

    def _may_run_ahead(self, hooks: HookList) -> bool:
        """Whether a run may begin while the one before is being made.

        Not where hooks want to see that one, loops are timed, or others take
        part: an error would leave them behind, and two programs at once can
        lock simulated cores.
        """
        cores = self._runtime.program.layout(ModeKeys.TRAIN).cores
        return (
            (cores.mesh is None or cores.platform != "cpu")
            and not self._context.hosts.are_several
            and not self._plan.is_timed
            and hooks.allows_run_ahead
        )

    def _hooks(self, hooks: tuple[Hook, ...], steps: int | None) -> HookList:
        """All hooks of this call, and what they may ask."""
        config = self._context.config
        if shows_progress(config.progress):
            hooks = (*hooks, ProgressBarHook(steps))
        report = TrainingReport(
            self._loop_state, self._infeed, self._outfeed, self._metrics
        )
        session = TrainingSession(
            self._context,
            self._loop_state,
            self._saver,
            self._training.owner,
            self._evaluate,
            self._positions.is_interrupted,
            self._call,
        )
        session.graph = self._step.graph
        session.validate = self._validate
        all_hooks = training_hooks(
            self._context,
            self._loop_state,
            self._training.listeners,
            hooks,
            self._step.hooks,
            report.hook(self._context),
        )
        if self._training.validation is not None:
            all_hooks = with_epochs(all_hooks)
        return HookList(with_callbacks(all_hooks), session)

    def _evaluate(
        self,
        input_fn: InputFn,
        steps: int | None,
        hooks: Iterable[Hook] | None,
        name: str | None,
    ) -> dict[str, Any]:
        """Evaluates the values between two runs."""
        return self._run_evaluation(
            self._training.evaluation(input_fn, steps, hooks, name)
        )

    def _validate(self) -> dict[str, Any]:
        """What `validation` gives for the values between two runs."""
        validation = self._training.validation
        if validation is None:
            return {}
        # Several hooks may have epochs that end here.
        version = self._loop_state.values.version
        if version not in self._validated:
            self._validated = {version: self._run_evaluation(validation)}
        return self._validated[version]

    def _run_evaluation(self, evaluation: Evaluation) -> dict[str, Any]:
        def current(step: Step, slots: bool) -> Any:
            del slots  # Training has them all.
            values = self._loop_state.values
            return contextlib.nullcontext(
                self._runtime.values.of_training(step, values, self._step)
            )

        return evaluation.run(current)
