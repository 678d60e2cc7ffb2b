"""One call of `evaluate`, which reads every example once."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import jax
import numpy as np

from keras_tpu_estimator.api.config import validation as checks
from keras_tpu_estimator.api.config.tpu_config import IterationsPerLoop
from keras_tpu_estimator.api.hooks import progress
from keras_tpu_estimator.api.hooks.callback_hook import callbacks_of
from keras_tpu_estimator.api.hooks.hook_list import HookList, validate_hooks
from keras_tpu_estimator.api.hooks.loop_results import LoopResults
from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.api.hooks.stall import stalls_shown
from keras_tpu_estimator.base.common import waiting
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import InputFn
from keras_tpu_estimator.base.hosts.host_exchange import HostExchange
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.growing_files import shown_at_end
from keras_tpu_estimator.engine.device.run_state import RunState
from keras_tpu_estimator.engine.program.steps import (
    EVAL_METRICS,
    HOST_CALL,
    METRIC_VALUES,
    Outputs,
    Step,
)
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.files.directory.retention import note
from keras_tpu_estimator.files.summary import collecting
from keras_tpu_estimator.files.summary.collecting import Collected
from keras_tpu_estimator.runs.agreed_steps import compare_edits
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.loop_state import EvaluationState, hooks_around
from keras_tpu_estimator.runs.outfeed import LastOfAll, Outfeed, call_for_steps
from keras_tpu_estimator.runs.plan import LoopPlan, SizesBetween
from keras_tpu_estimator.runs.run_ledger import evaluating
from keras_tpu_estimator.runs.staging import (
    StagedInput,
    StagedStack,
    StepsByShape,
    next_loop,
)

_logger = logging.getLogger("keras_tpu_estimator")

# The steps of one run keep the devices busy, and fit their memory.
STEPS_PER_RUN = IterationsPerLoop(32, "count")

# Opens the values for a step, optionally with optimizer state.
OpenValues = Callable[[Step, bool], contextlib.AbstractContextManager[RunState]]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The arguments of one `evaluate`."""

    context: EstimatorContext
    input_fn: InputFn
    hooks: tuple[Hook, ...]
    steps: int | None
    name: str | None

    @classmethod
    def from_arguments(
        cls,
        context: EstimatorContext,
        input_fn: InputFn,
        steps: int | None,
        hooks: Iterable[Hook] | None,
        name: str | None,
    ) -> Self:
        """Returns the arguments of `evaluate` after checking their types and values."""
        steps = checks.whole_steps("steps", steps, context.mode_devices.use_tpu)
        paths.check_folder_name("`name`", eval_dir(context.model_dir, name))
        user_hooks = validate_hooks(hooks)
        context.mode_devices.check(ModeKeys.EVAL)
        if context.config.fast_dev_run:
            steps = 1
        return cls(context, input_fn, user_hooks, steps, name)

    def run(self, open_values: OpenValues) -> dict[str, Any]:
        """Evaluates, writes the result, and returns the metrics by name."""
        with evaluating(self.context.model_dir):
            return self.context.reading_again(lambda: self._run(open_values))

    def _run(self, open_values: OpenValues) -> dict[str, Any]:
        context = self.context
        plan = LoopPlan(STEPS_PER_RUN, self.steps)
        _logger.info("Starting evaluation.")
        with (
            stalls_shown(context.config.stall_timeout_secs) as watch,
            shown_at_end(),
            waiting.ended(),
            context.hosts.call("evaluate") as call,
            self._checked_equal(call),
            context.pipeline(
                ModeKeys.EVAL,
                self.input_fn,
                self.steps,
                chunk=plan.chunk,
                capacity=plan.capacity,
                hooks=self.hooks,
            ) as pipeline,
            StagedInput(
                context.runtime,
                ModeKeys.EVAL,
                context.steps(ModeKeys.EVAL, pipeline),
                plan,
            ) as infeed,
        ):
            first = next(infeed, None)
            if first is None:
                raise ValueError(
                    "The input of evaluate must have at least one batch with "
                    "examples. Received an empty input. Return batches from "
                    "input_fn."
                )
            step = first.prepare(context.runtime)
            hooks = (*watch, *self.hooks, *step.hooks)
            opening = open_values(step, bool(callbacks_of(hooks)))
            with context.reading(opening) as values:
                # All hosts have the values of one checkpoint, or of training.
                call.check_same({GLOBAL_STEP: values.step})
                checkpoint = values.checkpoint
                compare_edits(call, values, "evaluate")
                loop = EvaluationLoop(context, step, values, infeed, self.steps)
                result = loop.run(first, hooks, call)
        if context.hosts.is_chief:
            self._write(result, loop, checkpoint)
        return result

    @contextlib.contextmanager
    def _checked_equal(self, call: HostExchange) -> Iterator[None]:
        """Checks that all hosts have the same arguments."""
        self.context.check_together(call, steps=self.steps, name=self.name)
        yield

    def _write(
        self,
        result: dict[str, Any],
        loop: "EvaluationLoop",
        checkpoint: str | None,
    ) -> None:
        """Writes the result with the metric writers."""
        name = self.name
        step = int(result[GLOBAL_STEP])
        directory = eval_dir(self.context.model_dir, name)
        prefix = f"{os.path.basename(directory)}/"
        writer = self.context.metric_writer(directory, prefix)
        with shown_at_end():
            writer.write_result(step, result, checkpoint)
            # A metric replaces the last batch's value of the same name.
            collecting.write(loop.summaries, writer, step, without=result)
            if self.context.config.save_summary_steps:
                loop.recorded.write(writer)
            writer.flush()
        keep_best = self.context.config.keep_best
        if keep_best and checkpoint and (name or None) == keep_best.name:
            note(keep_best, self.context.model_dir, checkpoint, result)
        _logger.info(
            "Saving dict for global step %d: %s",
            step,
            ", ".join(
                f"{key} = {result[key]}"
                for key in sorted(result)
                # Bytes may be serialized images.
                if not isinstance(result[key], bytes)
            ),
        )


class EvaluationLoop:
    """The runs of the device loop in one `evaluate`, with their hooks.

    `recorded` has the summaries that `host_call` recorded without a writer.
    """

    def __init__(
        self,
        context: EstimatorContext,
        step: Step,
        values: RunState,
        infeed: StagedInput,
        steps: int | None,
    ):
        self._context = context
        self._runtime = context.runtime
        self._hosts = context.hosts
        self._step = step
        self._infeed = infeed
        self._steps = steps
        self._steps_by_shape = StepsByShape(step, self._runtime.program.store)
        self._batches = 0
        self._loop_state = EvaluationState(values, LoopResults(values.step))
        self._host_metrics = context.runtime.program.host_metrics(step)
        self._metrics = self._runtime.loop.no_metrics(ModeKeys.EVAL)
        self._outfeed = Outfeed(self._consume)
        self.recorded = LastOfAll()
        self._result: dict[str, Any] = {}
        self._progress: progress.Progress = progress.NoProgress()
        if progress.shows_progress(context.config.progress):
            size = context.mode_devices.batch_sizes[ModeKeys.EVAL]
            self._progress = progress.started(0, steps, size, "evaluation step")

    @property
    def summaries(self) -> Sequence[Collected]:
        """The summaries of `model_fn` in the last step, on the devices."""
        return self._loop_state.results.summaries

    def run(
        self, first: StagedStack, hooks: tuple[Hook, ...], call: HostExchange
    ) -> dict[str, Any]:
        """Evaluates until the input, the steps or a hook ends it.

        The global step follows the metrics and the mean loss.
        """
        hook_list = hooks_around(
            hooks, self._context, self._loop_state, self._step.additions.graph
        )
        if not self._context.mode_devices.use_tpu:
            first = self._end_at_hooks(first, hook_list)
        hook_list.begin()
        self._runtime.values.add_hook_variables(self._loop_state.values, self._step)
        hook_list.after_create_session()
        with self._outfeed, call.reported_errors():
            staged: StagedStack | None = first
            while staged is not None:
                hooked = hook_list.before_run()
                hooked.start()
                self._run_loop(staged, hooked.fetches)
                stops = call.any(hooked.after_run(), "the end of a run")
                if stops or self._batches == self._steps:
                    break
                staged = next_loop(self._infeed, hook_list)
            else:
                # As in TensorFlow, hooks are also called before a loop that the end
                # of the input prevents.
                hook_list.before_run()
            hook_list.run_completed()
            self._loop_state.wait()
        result = jax.tree.map(lambda a: np.asarray(a)[()], self._result)
        if self._host_metrics is not None:
            result = self._host_metrics.result()
        self._loop_state.outputs = result
        hook_list.end()
        result |= {"loss": self._loop_state.results.loss}
        result = dict(sorted(result.items()))
        result[GLOBAL_STEP] = self._loop_state.fetch(GLOBAL_STEP)
        self._progress.show(self._batches, lambda: float(result["loss"]), is_end=True)
        return result

    def _end_at_hooks(self, first: StagedStack, hooks: HookList) -> StagedStack:
        """Ends runs where hooks must be called, and returns the first run."""
        size_after = SizesBetween(hooks.run_ends(0), STEPS_PER_RUN.value)
        return self._infeed.cut_loops(first, lambda: size_after(self._batches))

    def _run_loop(self, first: StagedStack, fetch: tuple[str, ...]) -> None:
        """Runs the parts of one loop."""
        staged: StagedStack | None = first
        while staged is not None:
            self._run_part(staged, fetch, begins_loop=staged is first)
            # The devices have completed the steps before this part.
            self._progress.show(self._batches, None)
            self._batches += len(staged.rows)
            self._loop_state.batches = self._batches
            staged = None if staged.ends_loop else next(self._infeed, None)
        total = f"/{self._steps}" if self._steps else ""
        _logger.info("Evaluation [%d%s]", self._batches, total)

    def _run_part(
        self, staged: StagedStack, fetch: tuple[str, ...], begins_loop: bool
    ) -> None:
        values = self._loop_state.values
        step = self._steps_by_shape.prepared(
            staged.shapes, lambda: staged.prepare(self._runtime)
        )
        self._runtime.values.complete(values, step)
        assigned, self._metrics, losses, outputs = self._runtime.loop.run(
            step,
            values,
            self._metrics,
            staged.data,
            staged.rows,
            step.named_among(fetch),
        )
        self._hosts.ran()
        values.update(assigned)
        self._result = outputs[METRIC_VALUES]
        self._loop_state.ran(losses, outputs, begins_loop)
        self._loop_state.additions = step.additions
        self._outfeed.put(outputs)

    def _consume(self, outputs: Outputs) -> None:
        """Calls the host's functions, on the outfeed's thread."""
        if self._host_metrics is not None:
            self._host_metrics.update(outputs[EVAL_METRICS])
        if self._step.host_call is not None and self._hosts.is_chief:
            tensors = outputs[HOST_CALL]
            steps = len(jax.tree.leaves(tensors)[0])
            numbers = [self._loop_state.results.step] * steps
            call_for_steps(
                self._step.host_call,
                tensors,
                numbers,
                summaries=self.recorded,
            )


def eval_dir(model_dir: str, name: str | None) -> str:
    """Returns the directory of an evaluation's results, such as `run/eval_test`."""
    return os.path.join(model_dir, f"eval_{name}" if name else "eval")
