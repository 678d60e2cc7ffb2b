"""One call of `train`, from the lock to the last checkpoint."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from keras_tpu_estimator.engine.inputs import position_files
from keras_tpu_estimator.engine.inputs.infeed import Infeed
from keras_tpu_estimator.files import checkpoints
from keras_tpu_estimator.files.checkpoints import save_files
from keras_tpu_estimator.files.checkpoints.lock import only_training
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import InputFn
from keras_tpu_estimator.ground.hosts.host_exchange import HostExchange
from keras_tpu_estimator.ground.storage.growing_files import shown_at_end
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.evaluation import Evaluation
from keras_tpu_estimator.runs.plan import LoopPlan
from keras_tpu_estimator.runs.position_saver import PositionSaver
from keras_tpu_estimator.runs.preemption import Preemption
from keras_tpu_estimator.runs.staging import StagedSteps
from keras_tpu_estimator.runs.staging import stage_ahead
from keras_tpu_estimator.runs.training_loop import TrainingLoop
from keras_tpu_estimator.spec.hooks.checkpoint_saver import (
    CheckpointSaverListener,
)
from keras_tpu_estimator.spec.hooks.session_run_hook import Hook
from keras_tpu_estimator.spec.hooks.stall import stalls_shown
from keras_tpu_estimator.spec.hooks.stop_at_step import steps_until_stop

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class Training:
    """What `train` was called with.

    Attributes:
        context: The estimator's functions and settings.
        input_fn: The user's function.
        hooks: The user's hooks and callbacks.
        listeners: Called around each checkpoint.
        steps: Steps to make, or `None`.
        max_steps: The global step to stop at, or `None`.
        owner: The estimator, which hooks may ask to evaluate.
        evaluation: Makes an `Evaluation` of the arguments of `evaluate`.
        validation: What to evaluate at the end of each epoch, or `None`.
    """

    context: EstimatorContext
    input_fn: InputFn
    hooks: tuple[Hook, ...]
    listeners: tuple[CheckpointSaverListener, ...]
    steps: int | None
    max_steps: int | None
    owner: Any
    evaluation: Callable[..., Evaluation]
    validation: Evaluation | None

    def run(self) -> None:
        """Trains from the latest checkpoint on, or from initial values."""
        config = self.context.config
        with (
            stalls_shown(config.stall_timeout_secs) as watch,
            shown_at_end(),
            self.context.hosts.call("train") as call,
            self._alone(call),
            Preemption() as preemption,
        ):
            # Not before the lock: another training may just be saving.
            checkpoint = self.context.latest_of_all(call)
            self.context.check_together(
                call,
                checkpoint=checkpoint and os.path.basename(checkpoint),
                steps=self.steps,
                max_steps=self.max_steps,
            )
            if self.context.is_done(checkpoint, self.max_steps):
                return
            first = 0 if checkpoint is None else checkpoints.step_of(checkpoint)
            steps = self._steps_from(first)
            plan = LoopPlan(self.context.iterations, steps)
            with self._input(plan, steps, checkpoint, preemption) as (
                infeed,
                positions,
            ):
                staged = next(infeed, None)
                if staged is None:
                    positions.no_step(checkpoint)
                else:
                    step = staged.prepare(self.context.runtime)
                    hooks = (*watch, *self.hooks, preemption)
                    TrainingLoop(
                        self, step, plan, infeed, positions, call, preemption
                    ).run(staged, checkpoint, steps, hooks)
        preemption.exit_if_requested(self.context.latest_checkpoint())

    @contextlib.contextmanager
    def _alone(self, call: HostExchange) -> Iterator[None]:
        """Keeps others from writing into the directory."""
        is_writer = self.context.hosts.is_chief
        with (
            only_training(self.context.model_dir)
            if is_writer
            else contextlib.nullcontext()
        ):
            if is_writer:
                save_files.sweep(self.context.model_dir)
            call.barrier()
            yield

    def _steps_from(self, first: int) -> int | None:
        """How many steps to make from a global step on, or `None`."""
        steps = self.steps
        if self.max_steps is not None:
            steps = self.max_steps - first
        return steps_until_stop(self.hooks, first, steps)

    @contextlib.contextmanager
    def _input(
        self,
        plan: LoopPlan,
        steps: int | None,
        checkpoint: str | None,
        preemption: Preemption,
    ) -> Iterator[tuple[Infeed[StagedSteps], PositionSaver]]:
        """The steps on the devices, and what saves how far they were read."""
        context, resumes = self.context, self.context.config.resume_input
        start = None
        if checkpoint is not None and resumes:
            start = position_files.read(checkpoint, context.hosts)
        mode, is_requested = ModeKeys.TRAIN, preemption.is_requested
        # Several hosts stop together, after a run.
        is_alone = not context.hosts.are_several
        with (
            context.pipeline(
                mode, self.input_fn, steps, plan.chunk, start
            ) as pipeline,
            stage_ahead(
                context.runtime,
                mode,
                context.steps(mode, pipeline),
                plan,
                lambda: is_alone and is_requested(),
            ) as infeed,
        ):
            yield (
                infeed,
                PositionSaver(
                    pipeline.position if resumes else None,
                    lambda: is_requested() and not plan.is_done,
                    context.hosts,
                ),
            )
