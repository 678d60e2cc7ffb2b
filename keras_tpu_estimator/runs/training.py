"""One call of `train`, from the lock to the last checkpoint.

This file is in the order of execution. `Training` takes the lock, finds the latest
checkpoint, plans the loops, opens the input and restores the values. `TrainingLoop`
then runs the loops with their hooks.
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
from keras_tpu_estimator.api.hooks.loop_results import TrainingResults
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
from keras_tpu_estimator.engine.inputs.pipeline import Pipeline
from keras_tpu_estimator.engine.inputs.position import read_position
from keras_tpu_estimator.engine.program.steps import (
    HOST_CALL,
    STEP_NUMBERS,
    TRAIN_METRICS,
    Outputs,
    Step,
)
from keras_tpu_estimator.files.directory import save_files, state_file
from keras_tpu_estimator.files.directory.state_file import only_training
from keras_tpu_estimator.runs.agreed_steps import check_same_model, compare_edits
from keras_tpu_estimator.runs.batch_runs import BatchRuns
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.loop_state import LoopState
from keras_tpu_estimator.runs.outfeed import (
    EveryFewSteps,
    Outfeed,
    TrainingMetrics,
    call_for_steps,
)
from keras_tpu_estimator.runs.plan import LoopPlan, StepCounting
from keras_tpu_estimator.runs.position_saver import PositionSaver, Start
from keras_tpu_estimator.runs.preemption import LoopEnd, Preemption
from keras_tpu_estimator.runs.run_ledger import recording
from keras_tpu_estimator.runs.saver import Saver
from keras_tpu_estimator.runs.staging import (
    StagedInput,
    StagedStack,
    StepsByShape,
    next_loop,
)
from keras_tpu_estimator.runs.training_hooks import (
    REPORT_NAMES,
    Evaluator,
    TrainingCall,
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
        context = self.context
        with (
            stalls_shown(context.config.stall_timeout_secs) as watch,
            shown_at_end(),
            waiting.ended(),
            context.hosts.call("train") as exchange,
            self._locked(exchange),
            Preemption() as preemption,
        ):
            # Another training may save until this call has the lock.
            checkpoint = context.latest_of_all(exchange)
            context.check_together(
                exchange,
                checkpoint=checkpoint and os.path.basename(checkpoint),
                steps=self.steps,
                max_steps=self.max_steps,
            )
            start = Start.at(checkpoint)
            if context.is_done(start.checkpoint, start.step, self.max_steps):
                return
            if context.hosts.is_chief:
                state_file.unmark_complete(context.model_dir)
            steps = self._steps_after(start.step)
            counting = StepCounting()
            plan = LoopPlan(
                context.iterations,
                steps,
                is_open=counting.is_open,
                speed=context.loop_speed,
            )
            with (
                recording(context.model_dir, start, context.hosts.is_chief),
                self._input(plan, steps, start, preemption, counting) as (
                    infeed,
                    positions,
                ),
            ):
                first = next(infeed, None)
                if first is None:
                    positions.report_no_steps(start)
                else:
                    step = first.prepare(context.runtime)
                    call = TrainingCall(
                        exchange=exchange,
                        preemption=preemption,
                        start=start,
                        steps=steps,
                        plan=plan,
                        counting=counting,
                        infeed=infeed,
                        positions=positions,
                    )
                    self._train(call, step, first, (*watch, *self.hooks))
        preemption.exit_if_requested(context.latest_checkpoint)

    @contextlib.contextmanager
    def _locked(self, exchange: HostExchange) -> Iterator[None]:
        """Prevents other trainings from writing into the directory."""
        is_writer = self.context.hosts.is_chief
        with (
            only_training(self.context.model_dir)
            if is_writer
            else contextlib.nullcontext()
        ):
            if is_writer:
                save_files.sweep(self.context.model_dir)
            exchange.barrier()
            yield

    def _steps_after(self, step: int) -> int | None:
        """Returns the number of steps after a step, or `None` for no end."""
        steps = self.steps if self.max_steps is None else self.max_steps - step
        return steps_until_stop(self.hooks, step, steps)

    @contextlib.contextmanager
    def _input(
        self,
        plan: LoopPlan,
        steps: int | None,
        start: Start,
        preemption: Preemption,
        counting: StepCounting,
    ) -> Iterator[tuple[StagedInput, PositionSaver]]:
        """Opens the steps on the devices, and the saver of the input's position."""
        context, resumes = self.context, self.context.config.resume_input
        position = read_position(start.files, context.hosts) if resumes else None
        mode, is_requested = ModeKeys.TRAIN, preemption.is_requested
        # Several hosts stop together, after a run.
        is_alone = not context.hosts.are_several
        with context.pipeline(
            mode,
            self.input_fn,
            steps,
            chunk=plan.chunk,
            capacity=plan.capacity,
            start=position,
            hooks=self.hooks,
        ) as pipeline:
            self._check_fits(start.checkpoint, pipeline)
            with StagedInput(
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

    def _check_fits(self, checkpoint: str | None, pipeline: Pipeline) -> None:
        """Compares the model with a checkpoint, before input is re-read."""
        if checkpoint is None or self.context.hosts.are_several:
            return  # Several hosts must read their inputs together.
        steps = pipeline.peek()
        if steps is not None:
            first, runtime = steps.step(0), self.context.runtime
            step = runtime.prepare(ModeKeys.TRAIN, first.features, first.labels)
            runtime.values.check_fits(step, checkpoint)

    def _train(
        self,
        call: TrainingCall,
        step: Step,
        first: StagedStack,
        hooks: tuple[Hook, ...],
    ) -> None:
        """Restores the values, trains them, and saves the last checkpoint."""
        context = self.context
        donated = context.runtime.values.donated(step, call.start.checkpoint)
        with context.reading(donated) as values:
            is_new = call.start.checkpoint is None
            check_same_model(call.exchange, values, is_new)
            compare_edits(call.exchange, values, "train")
            results = TrainingResults(values.step, is_mean=not call.plan.follows_hooks)
            state = LoopState(values, results, call.steps, call.plan.loops)
            with (
                call.positions.of_call(values),
                Saver(
                    context,
                    state,
                    call.positions,
                    step.additions,
                ) as saver,
            ):
                loop = TrainingLoop(self, call, step, state, saver)
                loop.run(first, hooks)
            loop.report.write_times(context, state.results.step)
        _logger.info("Loss for final step: %.6g.", state.results.last_loss)


class TrainingLoop:
    """The loops of one `train`: each runs many steps on the devices, between hooks.

    A loop has several parts if its steps do not fit one program. The devices run a part
    while the host reports on the previous one.
    """

    def __init__(
        self,
        training: Training,
        call: TrainingCall,
        step: Step,
        state: LoopState,
        saver: Saver,
    ):
        context = training.context
        self._training = training
        self._context = context
        self._runtime = context.runtime
        self._call = call
        self._step = step
        self._state = state
        self._plan = call.plan
        self._infeed = call.infeed
        self._steps = StepsByShape(step, self._runtime.program.store)
        self._initial_metrics = self._runtime.loop.no_metrics(ModeKeys.TRAIN)
        self._outfeed = Outfeed(self._consume)
        self._metrics = TrainingMetrics(
            self._runtime.program.host_metrics(step, REPORT_NAMES), self._outfeed
        )
        self._writer = context.metric_writer()
        self.report = TrainingReport(self._infeed, self._metrics, self._writer)
        self._summaries = EveryFewSteps(self._writer, context.config.save_summary_steps)
        self._session = TrainingSession(
            context,
            state,
            step,
            saver,
            training.evaluator,
            self._metrics,
            call,
        )

    def run(self, first: StagedStack, hooks: tuple[Hook, ...]) -> None:
        """Trains until the input, the plan or a hook ends it."""
        exchange, positions = self._call.exchange, self._call.positions
        hook_list = self._all_hooks(hooks)
        batch_runs = self._begin(hook_list, first)
        with self._outfeed, exchange.reported_errors():
            with batch_runs.until_input_ends():
                self._run_loops(hook_list, batch_runs)
            hook_list.run_completed()
            self._state.wait()
        is_interrupted = exchange.any(positions.is_interrupted(), "the end of training")
        positions.at_end(is_interrupted)
        hook_list.end()
        # This also compares the last assigned values.
        exchange.barrier("the end of train")

    def _all_hooks(self, hooks: tuple[Hook, ...]) -> HookList:
        """Returns all hooks of this call, with their session."""
        context = self._context
        if shows_progress(context.config.progress):
            size = context.mode_devices.batch_sizes[ModeKeys.TRAIN]
            hooks = (*hooks, ProgressHook(self._call.steps, size))
        all_hooks = training_hooks(
            context,
            self._training.listeners,
            hooks,
            self._step,
            self.report.hook(context),
            self._writer,
        )
        if self._training.evaluator.validation is not None:
            all_hooks = with_epochs(all_hooks)
        return HookList(with_callbacks(all_hooks), self._session)

    def _begin(self, hook_list: HookList, first: StagedStack) -> BatchRuns:
        """Plans the loops after the first one, and begins the hooks.

        Returns the runs of hooks on batches, which have the first part of a loop.
        """
        values, start = self._state.values, self._state.values.step
        ends = hook_list.run_ends(start, self._context.steps_between_hooks)
        self._plan.end_at(end - start for end in ends)
        states = self._call.start.states_of(hook_list, self._context.hosts)
        self._call.positions.states = states
        if self._context.config.save_summary_steps:
            self._writer.write_start(start + 1)
        hook_list.begin()
        self._runtime.values.add_hook_variables(values, self._step)
        self._call.counting.settle(self._step, hook_list.may_train)
        if self._call.counting.is_open():
            first = self._infeed.cut_loops(first, self._size_by_value)
        batch_runs = self._session.batch_runs = BatchRuns(
            self._runtime, self._state, self._plan, self._steps, self._infeed, first
        )
        hook_list.after_create_session(states.resuming)
        return batch_runs

    def _run_loops(self, hook_list: HookList, batch_runs: BatchRuns) -> None:
        """Runs the loops with their hooks, until the input, the plan or a hook ends."""
        while True:
            # As in TensorFlow, this is also called if the end of the input prevents the
            # loop. A hook may take batches that come before those of the loop.
            hooked = hook_list.before_run()
            staged = batch_runs.take_coming()
            if staged is None:
                break
            hooked.start()
            self._run_loop(staged, hooked.fetches, hook_list)
            # One of the hooks saves a checkpoint if it is due.
            end = self._agreed_end(hooked.after_run(), hook_list)
            if end.stops or self._plan.is_done:
                break
            batch_runs.coming = next_loop(self._infeed, hook_list, end.runs_ahead)

    def _run_loop(
        self, first: StagedStack, fetches: tuple[str, ...], hook_list: HookList
    ) -> None:
        """Runs the parts of one loop, until the loop or the input ends."""
        step_before = self._state.values.step
        shapes_before = len(self._steps)
        steps, metrics = 0, self._initial_metrics
        staged: StagedStack | None = first
        while staged is not None:
            metrics = self._run_part(
                staged, metrics, fetches, hook_list, begins_loop=not steps
            )
            steps += len(staged.rows)
            staged = None if staged.ends_loop else next(self._infeed, None)
        counted = steps
        if not self._step.additions.counts_once:
            counted = self._state.values.step - step_before
        if self._plan.is_timed and not self._plan.follows_hooks:
            # The duration of a loop ends when the devices have completed it.
            self._state.wait()
        self._plan.ran(steps, counted, is_known=len(self._steps) == shapes_before)

    def _run_part(
        self,
        staged: StagedStack,
        metrics: MetricsState,
        fetches: tuple[str, ...],
        hook_list: HookList,
        begins_loop: bool,
    ) -> MetricsState:
        """Starts a part of a loop, and reports the previous one to hooks."""
        state, values = self._state, self._state.values
        step = self._steps.prepared(
            staged.shapes, lambda: staged.prepare(self._runtime)
        )
        # An evaluation in a hook may have added variables.
        self._runtime.values.complete(values, step)
        state.note_if_complete()
        assigned, metrics, losses, outputs = self._runtime.loop.run(
            step,
            values,
            metrics,
            staged.data,
            staged.rows,
            step.named_among(fetches),
        )
        self._context.hosts.ran()
        numbers: Sequence[int] = range(
            values.step + 1, values.step + len(staged.rows) + 1
        )
        if STEP_NUMBERS in outputs:
            numbers = np.asarray(outputs[STEP_NUMBERS]).tolist()
        values.update(assigned, len(staged.rows), numbers[-1])
        # This waits for the previous loop. The current one has started.
        state.wait()
        hook_list.run_completed()
        state.ran(losses, outputs, begins_loop)
        state.additions = step.additions
        if HOST_CALL in outputs or TRAIN_METRICS in outputs:
            self._outfeed.put(outputs, numbers)
        return metrics

    def _consume(self, outputs: Outputs, numbers: Sequence[int]) -> None:
        """Calls the host's functions, on the outfeed's thread."""
        tpu_config = self._context.config.tpu_config
        if self._step.host_call is not None and self._context.hosts.is_chief:
            call_for_steps(
                self._step.host_call,
                outputs[HOST_CALL],
                numbers,
                tpu_config.experimental_host_call_every_n_steps,
                self._summaries,
            )
        if TRAIN_METRICS in outputs:
            self._metrics.update(outputs[TRAIN_METRICS])

    def _agreed_end(self, stops: bool, hook_list: HookList) -> LoopEnd:
        """Makes all hosts continue, stop and save after the same loop."""
        session = self._session
        end_here = LoopEnd(
            stops, self._runs_ahead(hook_list), frozenset(session.due_here)
        )
        session.due_here.clear()
        end = self._call.preemption.agree(self._call.exchange, end_here)
        session.due_anywhere = end.due
        return end

    def _size_by_value(self) -> int:
        """Returns the length of the next loop of a program that counts by value."""
        if not self._context.mode_devices.use_tpu:
            return 1
        return self._plan.next_size(self._context.steps_between_hooks)

    def _runs_ahead(self, hook_list: HookList) -> bool:
        """Returns whether this host could begin the next loop now.

        Several hosts agree on the answer, so that after an error each has started the
        same loops.
        """
        is_ready = self._infeed.is_ready or not self._context.hosts.are_several
        return is_ready and self._may_run_ahead(hook_list)

    def _may_run_ahead(self, hook_list: HookList) -> bool:
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
            and not self._infeed.is_cut
            and hook_list.allows_run_ahead
        )
