"""One call of `predict`: a stream of batches in, a stream of rows out."""

import collections
import contextlib
import dataclasses
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Iterator

import jax
import numpy as np

from keras_tpu_estimator.engine.device.run_state import RunState
from keras_tpu_estimator.engine.inputs.infeed import Infeed
from keras_tpu_estimator.engine.inputs.padding import pad
from keras_tpu_estimator.engine.inputs.pipeline import Pipeline
from keras_tpu_estimator.engine.program import cut_integers
from keras_tpu_estimator.engine.program.steps import CUT
from keras_tpu_estimator.engine.program.steps import Outputs
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import Features
from keras_tpu_estimator.ground.base.types import InputFn
from keras_tpu_estimator.ground.base.types import PathLike
from keras_tpu_estimator.ground.storage.growing_files import shown_at_end
from keras_tpu_estimator.ground.tracing.variables import ArraysByPath
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.host_calls import call_for_steps
from keras_tpu_estimator.runs.live_model import hooks_around
from keras_tpu_estimator.runs.loop_state import PredictionState
from keras_tpu_estimator.runs.predicted import Predicted
from keras_tpu_estimator.runs.steps_by_shape import StepsByShape
from keras_tpu_estimator.spec.hooks.callback_hook import callbacks_of
from keras_tpu_estimator.spec.hooks.progress import Progress
from keras_tpu_estimator.spec.hooks.progress import prediction_started
from keras_tpu_estimator.spec.hooks.session_run_hook import Hook
from keras_tpu_estimator.spec.model_fn.outside_compilation import (
    with_host_tensors,
)

# How many steps the devices are given beside the one that is awaited.
_AHEAD = 4
# How many are read ahead of these, and how large they may be together.
_MOST_READ_AHEAD = 8
_MOST_BYTES_AHEAD = 2**25


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What `predict` was called with.

    Attributes:
        checkpoint_path: The checkpoint to predict with; by default the latest.
    """

    context: EstimatorContext
    input_fn: InputFn
    hooks: tuple[Hook, ...]
    checkpoint_path: PathLike | None

    def run(self) -> Generator[Predicted, None, None]:
        """Yields the predictions of each batch."""
        context, mode = self.context, ModeKeys.PREDICT
        checkpoint = context.checkpoint_to_read(self.checkpoint_path)
        with (
            shown_at_end(),
            context.pipeline(mode, self.input_fn, None, 1) as pipeline,
        ):
            steps = PaddedSteps(pipeline, context.placement.input_size(mode))
            first = steps.next()
            if first is None:
                return
            step = context.runtime.prepare(
                mode, first.features, first.is_padding
            )
            hooks = (*self.hooks, *step.hooks)
            slots = bool(callbacks_of(hooks))
            with context.runtime.values.lent(step, checkpoint, slots) as values:
                loop = PredictionLoop(context, step, values, steps)
                yield from loop.run(first, hooks)


@dataclasses.dataclass(frozen=True)
class Padded:
    """One step to predict for.

    Attributes:
        features: Nest of NumPy arrays, padded to the batch size.
        is_padding: Booleans of shape `[batch]`.
        examples: How many rows are no padding.
    """

    features: Features
    is_padding: np.ndarray
    examples: int


class PaddedSteps:
    """The single steps of an input, padded to the size asked for.

    A batch without examples is a step of padding alone: who asked with it may
    wait for the answer.

    Args:
        size: The batch size to pad to; by default batches stay as they are.
    """

    def __init__(self, pipeline: Pipeline, size: int | None):
        self._pipeline = pipeline
        self._size = size

    def next(self) -> Padded | None:
        """The next step; `None` at the end."""
        batch = self._pipeline.take(1)
        if batch is None:
            return None
        features = batch.step(0).features
        size = max(self._size or 1, batch.examples)
        return Padded(*pad(features, size), batch.examples)


class PredictionLoop:
    """Feeds, runs and accompanies the devices in one `predict`.

    Args:
        step: The step of PREDICT, for batches like the first.
    """

    def __init__(
        self,
        context: EstimatorContext,
        step: Step,
        values: RunState,
        steps: PaddedSteps,
    ):
        self._context = context
        self._runtime = context.runtime
        self._step = step
        self._steps = steps
        self._values = values
        self._loop_state = PredictionState(values)
        self._fetch: tuple[str, ...] = ()
        self._made = 0
        self._prepared = StepsByShape(step, self._runtime.program.store)
        # Steps under way, and what the last of them assigns.
        self._running: collections.deque[Running] = collections.deque()
        self._ahead: ArraysByPath = {}
        # What of the values is only read, as long as nobody edits them.
        self._others: dict[Step, ArraysByPath] = {}
        self._version = values.version

    def run(self, first: Padded, hooks: Iterable[Hook]) -> Iterator[Predicted]:
        """Yields the predictions of each batch, padding cut off.

        Args:
            first: The first step.
            hooks: Called around each batch.
        """
        hook_list = hooks_around(
            hooks, self._context, self._loop_state, self._step.graph
        )
        hook_list.begin()
        self._runtime.values.take_up(self._values, self._step)
        hook_list.after_create_session()
        self._running.append(self._start(first))
        with (
            Infeed(self._steps.next, _read_ahead(first)) as infeed,
            self._progress_shown() as progress,
        ):
            while True:
                progress.show(self._made, None)
                running = self._next(infeed)
                hooked = hook_list.before_run()
                if running is None:
                    break
                hooked.start()
                running = self._up_to_date(running, hooked.fetches)
                predicted = self._finish(running)
                self._made += 1
                stops = hooked.after_run()
                progress.hide()
                yield predicted
                if stops:
                    break
        hook_list.end()

    @contextlib.contextmanager
    def _progress_shown(self) -> Iterator[Progress]:
        """Shows the number of batches while the caller waits for one."""
        progress = prediction_started(
            self._context.config.progress,
            self._context.placement.batch_sizes[ModeKeys.PREDICT],
        )
        try:
            yield progress
        finally:
            progress.show(self._made, None, is_end=True)

    def _next(self, infeed: Infeed[Padded]) -> "Running | None":
        """The next step, with some more under way after it.

        The input is waited for only when nothing is under way: it may itself
        be waiting for the last answer.
        """
        if not self._running and (step := next(infeed, None)):
            self._running.append(self._start(step))
        while 0 < len(self._running) <= _AHEAD:
            step = infeed.take_ready()
            if step is None:
                break
            self._running.append(self._start(step))
        return self._running.popleft() if self._running else None

    def _start(self, padded: Padded) -> "Running":
        runtime, before = self._runtime, self._ahead
        step = self._step_for(padded)
        if step not in self._others:
            self._others[step] = step.split({**self._values, **before})[1]
        assigned, outputs, named = runtime.loop.predict(
            step,
            {p: before.get(p, self._values[p]) for p in step.assigned},
            self._others[step],
            runtime.loop.put_one(padded.features, padded.is_padding),
            self._fetch,
        )
        if assigned:
            self._ahead = before | assigned
        return Running(padded, before, assigned, outputs, named)

    def _step_for(self, padded: Padded) -> Step:
        """The program's step for batches of this shape."""
        leaves, nest = jax.tree.flatten(padded.features)
        shapes = (nest, *((leaf.shape, leaf.dtype) for leaf in leaves))

        def prepare() -> Step:
            step = self._runtime.prepare(
                ModeKeys.PREDICT, padded.features, padded.is_padding
            )
            self._runtime.values.complete(self._values, step)
            return step

        return self._prepared.of(shapes, prepare)

    def _up_to_date(
        self, running: "Running", names: Iterable[str]
    ) -> "Running":
        """The same step, once more if it was started too early.

        Hooks may want tensors that it was started without, and callbacks may
        have assigned values that it was to read.
        """
        wanted = {*self._step.named_among(names)}
        if self._values.version != self._version:
            self._version = self._values.version
            self._others, self._ahead = {}, {}
            self._fetch = tuple(sorted(wanted.union(self._fetch)))
            under_way = [running, *self._running]
            started = [self._start(each.step) for each in under_way]
            self._running = collections.deque(started[1:])
            return started[0]
        if wanted <= running.named.keys():
            return running
        self._fetch = tuple(sorted(wanted.union(self._fetch)))
        ahead, self._ahead = self._ahead, running.before
        running = self._start(running.step)
        self._ahead = ahead
        return running

    def _finish(self, running: "Running") -> Predicted:
        """Waits for a step, and shows hooks what has come of it."""
        predicted = running.finish()
        self._values.update(running.assigned)
        if self._step.host_call is not None:
            stacked = jax.tree.map(
                lambda a: np.asarray(a)[None], running.outputs["host_call"]
            )
            numbers = [self._loop_state.step]
            call_for_steps(self._step.host_call, stacked, numbers)
        self._loop_state.outputs = predicted.by_name
        self._loop_state.fetched = {**predicted.by_name, **running.named}
        return predicted


@dataclasses.dataclass(frozen=True)
class Running:
    """A step that the devices are at work on.

    Attributes:
        before: What the steps before it have assigned, by path.
        assigned: What it assigns, by path.
        outputs: Predictions and, if there are any, the tensors of a
            `host_call`, which will be there.
        named: Other tensors by name.
    """

    step: Padded
    before: ArraysByPath
    assigned: ArraysByPath
    outputs: Outputs
    named: Outputs

    def finish(self) -> Predicted:
        """Waits for the predictions; returns them without padding.

        Raises:
            CutIntegersError: They have integers that do not fit.
        """
        cut_integers.check(self.outputs.get(CUT, {}))
        predictions = with_host_tensors(
            jax.tree.map(self._cut, self.outputs["predictions"]),
            finish=np.asarray,
        )
        return Predicted(
            predictions, self.step.examples, len(self.step.is_padding)
        )

    def _cut(self, leaf: jax.Array) -> np.ndarray:
        array = np.asarray(leaf)
        has_rows = array.shape[:1] == self.step.is_padding.shape
        return array[: self.step.examples] if has_rows else array


def _read_ahead(step: Padded) -> int:
    """How many steps of this size to read ahead, two at least."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(step.features))
    return max(2, min(_MOST_READ_AHEAD, _MOST_BYTES_AHEAD // max(size, 1)))
