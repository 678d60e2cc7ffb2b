"""One call of `train`, from the lock to the last checkpoint.

This file is in the order of execution: the lock, the latest checkpoint, the plan of
the loops, the input, and then the loops with their hooks.
"""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterator, Sequence

import numpy as np

from keras_tpu_estimator.api.hooks.callback_hook import with_callbacks, with_epochs
from keras_tpu_estimator.api.hooks.checkpoint_saver import (
    CheckpointSaverListener,
)
from keras_tpu_estimator.api.hooks.hook_list import HookList
from keras_tpu_estimator.api.hooks.hook_states import HookStates
from keras_tpu_estimator.api.hooks.progress import ProgressHook, shows_progress
from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.api.hooks.stall import stalls_shown
from keras_tpu_estimator.api.hooks.stopping import steps_until_stop
from keras_tpu_estimator.base.common import waiting
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import InputFn
from keras_tpu_estimator.base.hosts.host_exchange import HostExchange
from keras_tpu_estimator.base.storage.growing_files import shown_at_end
from keras_tpu_estimator.engine.device.distributed_program import MetricsState
from keras_tpu_estimator.engine.inputs.pipeline import Infeed, Pipeline
from keras_tpu_estimator.engine.inputs.position import read_position
from keras_tpu_estimator.engine.program.steps import STEP_NUMBERS, Outputs, Step
from keras_tpu_estimator.files.directory import save_files, state_file
from keras_tpu_estimator.files.directory.state_file import only_training
from keras_tpu_estimator.files.formats import loading
from keras_tpu_estimator.runs.agreed_steps import check_same_model, compare_edits
from keras_tpu_estimator.runs.batch_runs import BatchRuns
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.loop_state import TrainingState
from keras_tpu_estimator.runs.outfeed import (
    EveryFewSteps,
    Outfeed,
    TrainingMetrics,
    call_for_steps,
)
from keras_tpu_estimator.runs.plan import LoopPlan, StepCounting
from keras_tpu_estimator.runs.position_saver import PositionSaver, read_states
from keras_tpu_estimator.runs.preemption import LoopEnd, Preemption
from keras_tpu_estimator.runs.saver import Saver
from keras_tpu_estimator.runs.staging import (
    RecutLoops,
    StagedInput,
    StagedSteps,
    StepsByShape,
    begin_loops,
    parts_of_loop,
    stage_ahead,
)
from keras_tpu_estimator.runs.training_hooks import (
    REPORT_NAMES,
    Evaluator,
    TrainingReport,
    TrainingSession,
    training_hooks,
)

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class Training:
    """The arguments of one `train`.

    `max_steps` is the global step to stop at. `evaluator` evaluates the values between
    two loops.
    """

    context: EstimatorContext
    input_fn: InputFn
    hooks: tuple[Hook, ...]
    listeners: tuple[CheckpointSaverListener, ...]
    steps: int | None
    max_steps: int | None
    evaluator: Evaluator

    def run(self) -> None:
        """Trains from the latest checkpoint, or from initial values."""
        self.context.reading_again(self._run)

    def _run(self) -> None:
        config = self.context.config
        with (
            stalls_shown(config.stall_timeout_secs) as watch,
            shown_at_end(),
            waiting.ended(),
            self.context.hosts.call("train") as call,
            self._locked(call),
            Preemption() as preemption,
        ):
            # Another training may save until this call has the lock.
            checkpoint = self.context.latest_of_all(call)
            self.context.check_together(
                call,
                checkpoint=checkpoint and os.path.basename(checkpoint),
                steps=self.steps,
                max_steps=self.max_steps,
            )
            if self.context.is_done(checkpoint, self.max_steps):
                return
            if self.context.hosts.is_chief:
                state_file.unmark_complete(self.context.model_dir)
            first = 0 if checkpoint is None else loading.step_of(checkpoint)
            steps = self._steps_from(first)
            counting = StepCounting()
            plan = LoopPlan(
                self.context.iterations,
                steps,
                is_open=counting.is_open,
                speed=self.context.loop_speed,
            )
            with self._input(plan, steps, checkpoint, preemption, counting) as (
                infeed,
                positions,
            ):
                staged = next(infeed, None)
                if staged is None:
                    positions.report_no_steps(checkpoint)
                else:
                    step = staged.prepare(self.context.runtime)
                    hooks = (*watch, *self.hooks, preemption)
                    TrainingLoop(
                        self, step, plan, infeed, positions, call, preemption
                    ).run(staged, checkpoint, steps, hooks, counting)
        preemption.exit_if_requested(self.context.latest_checkpoint())

    @contextlib.contextmanager
    def _locked(self, call: HostExchange) -> Iterator[None]:
        """Prevents other trainings from writing into the directory."""
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
        """Returns the number of steps after a global step, or `None`."""
        steps = self.steps
        if self.max_steps is not None:
            steps = self.max_steps - first
        return steps_until_stop(self.hooks, first, steps)

    def _check_fits(self, checkpoint: str | None, pipeline: Pipeline) -> None:
        """Compares the model with a checkpoint, before input is re-read."""
        if checkpoint is None or self.context.hosts.are_several:
            return  # Several hosts must read their inputs together.
        steps = pipeline.peek()
        if steps is not None:
            first, runtime = steps.step(0), self.context.runtime
            step = runtime.prepare(ModeKeys.TRAIN, first.features, first.labels)
            runtime.values.check_fits(step, checkpoint)

    @contextlib.contextmanager
    def _input(
        self,
        plan: LoopPlan,
        steps: int | None,
        checkpoint: str | None,
        preemption: Preemption,
        counting: StepCounting,
    ) -> Iterator[tuple[Infeed[StagedSteps], PositionSaver]]:
        """Opens the steps on the devices, and the saver of the input's position."""
        context, resumes = self.context, self.context.config.resume_input
        start = None
        if checkpoint is not None and resumes:
            start = read_position(checkpoint, context.hosts)
        mode, is_requested = ModeKeys.TRAIN, preemption.is_requested
        # Several hosts stop together, after a run.
        is_alone = not context.hosts.are_several
        with context.pipeline(
            *(mode, self.input_fn, steps, plan.chunk, plan.room, start),
            hooks=self.hooks,
        ) as pipeline:
            self._check_fits(checkpoint, pipeline)
            with stage_ahead(
                context.runtime,
                mode,
                context.steps(mode, pipeline),
                plan,
                lambda: is_alone and is_requested(),
                counting.give_up,
            ) as infeed:
                yield (
                    infeed,
                    PositionSaver(
                        pipeline.position if resumes else None,
                        lambda: is_requested() and not plan.is_done,
                        context.hosts,
                    ),
                )


class TrainingLoop:
    """The loops of one `train` on the devices, with their hooks."""

    def __init__(
        self,
        training: Training,
        step: Step,
        plan: LoopPlan,
        infeed: Infeed[StagedSteps],
        positions: PositionSaver,
        call: HostExchange,
        preemption: Preemption,
    ):
        self._training = training
        self._context = training.context
        self._runtime = training.context.runtime
        self._step = step
        self._plan = plan
        self._infeed: StagedInput = infeed
        self._positions = positions
        self._call = call
        self._preemption = preemption
        self._end = LoopEnd(stops=False, runs_ahead=False)
        self._steps = StepsByShape(step, self._runtime.program.store)
        self._initial_metrics = self._runtime.loop.no_metrics(ModeKeys.TRAIN)
        self._writer = self._context.metric_writer()
        self._summaries = EveryFewSteps(
            self._writer, self._context.config.save_summary_steps
        )
        self._outfeed = Outfeed(self._consume)
        self._metrics = TrainingMetrics(
            self._runtime.program.host_metrics(step, REPORT_NAMES),
            self._outfeed,
        )

    def run(
        self,
        first: StagedSteps,
        checkpoint: str | None,
        steps: int | None,
        hooks: tuple[Hook, ...],
        counting: StepCounting,
    ) -> None:
        """Trains until the input, the plan or a hook ends it."""
        donated = self._runtime.values.donated(self._step, checkpoint)
        with self._context.reading(donated) as values:
            check_same_model(self._call, values, is_new=checkpoint is None)
            compare_edits(self._call, values, "train")
            self._loop_state = TrainingState(
                values,
                steps,
                self._plan.loops,
                is_mean=not self._plan.follows_hooks,
                metrics=self._metrics,
            )
            saver = Saver(
                *(self._context, self._loop_state, self._positions),
                self._step.additions.retention,
            )
            with self._positions.of_call(values), saver:
                hook_list = self._hooks = self._all_hooks(hooks, saver, steps)
                start = values.step
                every = self._context.steps_between_hooks
                self._plan.end_at(
                    end - start for end in hook_list.run_ends(start, every)
                )
                states = self._hook_states(hook_list, checkpoint)
                self._positions.states = states
                if self._context.config.save_summary_steps:
                    self._writer.write_start(start + 1)
                hook_list.begin()
                self._runtime.values.add_hook_variables(values, self._step)
                counting.settle(self._step, hook_list.may_train)
                if counting.is_open():
                    first = self._count_by_value(first)
                batch_runs = self._batch_runs(first)
                hook_list.after_create_session(states.resuming)
                with self._outfeed, self._call.reported_errors():
                    with batch_runs.until_input_ends():
                        self._run_loops(batch_runs)
                    hook_list.run_is_made()
                    self._loop_state.wait()
                is_interrupted = self._call.any(
                    self._positions.is_interrupted(), "the end of training"
                )
                self._positions.at_end(is_interrupted)
                hook_list.end(is_interrupted)
                # This also compares the last assigned values.
                self._call.barrier("the end of train")
        loss = float(self._loop_state.last_loss)
        _logger.info("Loss for final step: %.6g.", loss)

    def _batch_runs(self, first: StagedSteps) -> BatchRuns:
        """Returns the runs of hooks on batches, which the session starts."""
        self._session.batch_runs = BatchRuns(
            *(self._runtime, self._loop_state, self._plan, self._steps),
            *(self._infeed, first),
        )
        return self._session.batch_runs

    def _run_loops(self, batch_runs: BatchRuns) -> None:
        """Runs the loops with their hooks, until the input, the plan or a hook ends."""
        first = batch_runs.take_coming()
        for batch_runs.coming in self._begin_loops(first):
            hooked = self._hooks.before_run()
            staged = batch_runs.take_coming()
            if staged is None:
                break
            hooked.start()
            self._run_loop(staged, hooked.fetches)
            # One of the hooks saves a checkpoint if it is due.
            self._agree_on_end(hooked.after_run())
            if self._end.stops or self._plan.is_done:
                break

    def _agree_on_end(self, stops: bool) -> None:
        """Makes all hosts continue, stop and save after the same loop."""
        session = self._session
        own = LoopEnd(stops, self._runs_ahead(), frozenset(session.due_here))
        session.due_here.clear()
        self._end = self._preemption.agree(self._call, own)
        session.due_anywhere = self._end.due

    def _count_by_value(self, first: StagedSteps) -> StagedSteps:
        """Plans each loop after the previous one, and returns the first loop."""
        plan, use_tpu = self._plan, self._context.mode_devices.use_tpu
        unchosen = self._context.steps_between_hooks
        self._infeed = RecutLoops(
            *(first, self._infeed),
            lambda: plan.next_size(unchosen) if use_tpu else 1,
        )
        return next(self._infeed)

    def _hook_states(self, hook_list: HookList, checkpoint: str | None) -> HookStates:
        """Returns the states of all hooks, with those of the checkpoint."""
        hosts = self._context.hosts
        saved = None if checkpoint is None else read_states(checkpoint, hosts)
        return HookStates(
            hook_list.hooks,
            saved,
            has_checkpoint=checkpoint is not None,
            warns=hosts.is_chief,
        )

    def _begin_loops(self, first: StagedSteps | None) -> Iterator[StagedSteps | None]:
        """Yields the first steps of each loop, and `None` at the end of the input."""
        return begin_loops(
            *(first, self._infeed, self._hooks), lambda: self._end.runs_ahead
        )

    def _run_loop(self, first: StagedSteps, fetch: tuple[str, ...]) -> None:
        """Runs the parts of one loop."""
        self._loop_state.start_loop()
        steps, metrics = 0, self._initial_metrics
        before = self._loop_state.values.step
        known = len(self._steps)
        for staged in parts_of_loop(first, self._infeed):
            metrics = self._run_part(staged, metrics, fetch)
            steps += staged.stacked.steps
        counted = steps
        if not self._step.additions.counts_once:
            counted = self._loop_state.values.step - before
        if self._plan.is_timed and not self._plan.follows_hooks:
            # The duration of a loop ends when the devices have completed it.
            self._loop_state.wait()
        self._plan.ran(steps, counted, is_known=len(self._steps) == known)

    def _run_part(
        self, staged: StagedSteps, metrics: MetricsState, fetch: tuple[str, ...]
    ) -> MetricsState:
        values = self._loop_state.values
        step = self._steps.of(staged.shapes, lambda: staged.prepare(self._runtime))
        # An evaluation in a hook may have added variables.
        self._runtime.values.complete(values, step)
        self._loop_state.note_if_made()
        assigned, metrics, losses, outputs = self._runtime.loop.run(
            *(step, values, metrics, staged.data, staged.steps),
            step.named_among(fetch),
        )
        self._context.hosts.ran()
        numbers: Sequence[int] = range(
            values.step + 1, values.step + staged.stacked.steps + 1
        )
        if STEP_NUMBERS in outputs:
            numbers = np.asarray(outputs[STEP_NUMBERS]).tolist()
        values.update(assigned, staged.stacked.steps, numbers[-1])
        # This waits for the previous loop. The current one has started.
        self._loop_state.wait()
        self._hooks.run_is_made()
        self._loop_state.ran(losses, outputs)
        self._loop_state.additions = step.additions
        if "host_call" in outputs or "train_metrics" in outputs:
            self._outfeed.put(outputs, numbers)
        return metrics

    def _consume(self, outputs: Outputs, numbers: Sequence[int]) -> None:
        """Calls the host's functions, on the outfeed's thread."""
        tpu_config = self._context.config.tpu_config
        if self._step.host_call is not None and self._context.hosts.is_chief:
            call_for_steps(
                self._step.host_call,
                outputs["host_call"],
                numbers,
                tpu_config.experimental_host_call_every_n_steps,
                self._summaries,
            )
        if "train_metrics" in outputs:
            self._metrics.update(outputs["train_metrics"])

    def _runs_ahead(self) -> bool:
        """Returns whether this host could begin the next loop now.

        Several hosts agree on the answer, so that after an error each has started the
        same loops.
        """
        is_ready = self._infeed.is_ready or not self._context.hosts.are_several
        return is_ready and self._may_run_ahead()

    def _may_run_ahead(self) -> bool:
        """Returns whether a loop may begin while the previous one runs.

        It may not if hooks must see the previous one, or loops are timed. Two
        concurrent programs can block the simulated devices of one process.
        """
        cores = self._runtime.program.layout(ModeKeys.TRAIN).cores
        are_simulated = (
            cores.mesh is not None
            and cores.platform == "cpu"
            and len(cores.mesh.local_devices) > 1
        )
        return (
            not are_simulated
            and (not self._plan.is_timed or self._plan.follows_hooks)
            and self._step.additions.counts_once
            and self._hooks.allows_run_ahead
        )

    def _all_hooks(
        self, hooks: tuple[Hook, ...], saver: Saver, steps: int | None
    ) -> HookList:
        """Returns all hooks of this call, with their session."""
        context, training = self._context, self._training
        if shows_progress(context.config.progress):
            size = context.mode_devices.batch_sizes[ModeKeys.TRAIN]
            hooks = (*hooks, ProgressHook(steps, size))
        report = TrainingReport(self._loop_state, self._infeed, self._metrics)
        all_hooks = training_hooks(
            context,
            self._loop_state,
            training.listeners,
            hooks,
            self._step,
            report.hook(context, self._writer),
            self._writer,
        )
        if training.evaluator.validation is not None:
            all_hooks = with_epochs(all_hooks)
        session = self._session = TrainingSession(
            context,
            self._loop_state,
            self._step,
            saver,
            training.evaluator,
            self._positions.is_interrupted,
            self._call,
        )
        return HookList(with_callbacks(all_hooks), session)
