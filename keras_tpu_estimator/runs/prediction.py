"""One call of `predict`: a stream of batches in, a stream of rows out."""

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

from keras_tpu_estimator.api.hooks.callback_hook import callbacks_of
from keras_tpu_estimator.api.hooks.loop_results import LoopResults
from keras_tpu_estimator.api.hooks.progress import Progress, prediction_started
from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import InputFn, PathLike
from keras_tpu_estimator.base.storage.growing_files import shown_at_end
from keras_tpu_estimator.base.tracing.variables import ArraysByPath
from keras_tpu_estimator.engine.device.run_state import RunState
from keras_tpu_estimator.engine.inputs.pipeline import Infeed, Pipeline
from keras_tpu_estimator.engine.inputs.stacking import (
    Buffers,
    StackBuilder,
    StackSize,
    even_share,
)
from keras_tpu_estimator.engine.program.steps import ReadAgainError, Step
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.loop_state import PredictionState, hooks_around
from keras_tpu_estimator.runs.outfeed import call_for_steps
from keras_tpu_estimator.runs.plan import SizesBetween
from keras_tpu_estimator.runs.prediction_batches import (
    Fed,
    Padded,
    PaddedSteps,
    Predicted,
    Result,
    Running,
    in_place,
    no_padding,
)
from keras_tpu_estimator.runs.sampling import SamplingSeed
from keras_tpu_estimator.runs.staging import StepsByShape

# This number of batches hides the time between runs.
MOST_BATCHES = 32
# The bytes of the features and predictions of one run. Larger batches run singly.
_STACK_SIZE = StackSize(2**21, most=2**22)
# The first wait of a batch for the next one.
_PATIENCE_SECS = 0.001
# A result should not wait longer for other batches.
_LONG_SECS = 0.1


class Rooms:
    """The number of batches that the programs of one call have room for.

    It depends only on the order of the batches, so that each call predicts the same
    input with the same programs, whatever the time it takes. Batches of the first shape
    have the usual room. A later shape, such as that of a smaller last batch, has room
    for one batch until the shape repeats. `newest` is the last room above 1.
    """

    def __init__(self, batch_bytes: Callable[[Padded], int], is_single: bool = False):
        self._batch_bytes = batch_bytes
        self._is_single = is_single
        self._rooms: dict[Any, int | None] = {}
        self.newest = 1

    def room(self, padded: Padded) -> int:
        """Returns the room for a run that begins with a batch."""
        if self._is_single:
            return 1
        shapes = padded.shapes
        is_later = bool(self._rooms) and shapes not in self._rooms
        room = self._rooms.setdefault(shapes, None)
        if is_later:
            return 1
        if room is None:
            size = self._batch_bytes(padded)
            room = self.newest = self._rooms[shapes] = even_share(
                MOST_BATCHES, size, _STACK_SIZE
            )
        return room


class RunSizes:
    """The number of batches in the next run, which shrinks if results are slow.

    A run is at most as large as all earlier runs together.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.size = 1
        self._clock = clock
        self._batches_before = 0
        self._since = 0.0
        self._batches = 0

    def awaited(self, batches: int) -> "RunSizes":
        """Measures the wait for a run of some batches in a `with` block."""
        self._batches = batches
        return self

    def __enter__(self) -> None:
        self._since = self._clock()

    def __exit__(self, *exception: object) -> None:
        waited = self._clock() - self._since
        self._batches_before += self._batches
        if waited > _LONG_SECS:
            self.size = max(1, self.size // 2)
        else:
            self.size = min(MOST_BATCHES, self._batches_before)


class Patience:
    """The time that a batch waits for the next one, which may join its run.

    Each wait in vain halves the time, so that an input that waits for the result of
    each batch is not delayed for long.
    """

    def __init__(self) -> None:
        self.secs = _PATIENCE_SECS

    def note(self, is_vain: bool) -> None:
        """Records whether the last wait was in vain."""
        self.secs = self.secs / 2 if is_vain else _PATIENCE_SECS


# The number of batches on the devices besides the awaited ones.
_AHEAD = 4
# The number of batches to read ahead of these, and their maximum size in bytes.
_LEAST_READ_AHEAD = 8
_MOST_BYTES_AHEAD = 2**25


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The arguments of one `predict`.

    The checkpoint is the latest one if `checkpoint_path` is `None`.
    """

    context: EstimatorContext
    input_fn: InputFn
    hooks: tuple[Hook, ...]
    checkpoint_path: PathLike | None
    sampling: SamplingSeed

    def run(self) -> Generator[Predicted, None, None]:
        """Yields the predictions of each batch."""
        try:
            yield from self._batches()
            return
        except ReadAgainError:
            if self.context.hosts.are_several:
                raise
        yield from self._batches()

    def _batches(self) -> Generator[Predicted, None, None]:
        context, mode = self.context, ModeKeys.PREDICT
        checkpoint = context.checkpoint_to_read(self.checkpoint_path)
        with (
            shown_at_end(),
            context.pipeline(
                mode, self.input_fn, None, chunk=1, hooks=self.hooks
            ) as pipeline,
        ):
            steps = PaddedSteps(pipeline, context.mode_devices.input_size(mode))
            first = steps.next()
            if first is None:
                return
            step = context.runtime.prepare(mode, first.features, first.is_padding)
            hooks = (*self.hooks, *step.hooks)
            slots = bool(callbacks_of(hooks))
            with context.runtime.values.borrowed(step, checkpoint, slots) as values:
                loop = PredictionLoop(context, step, values, pipeline, self.sampling)
                yield from loop.run(first, steps.next, hooks)


class PredictionLoop:
    """The runs of the devices in one `predict`, with their input and hooks.

    Several ready batches are predicted in one run. No batch waits for others for long,
    because the input may wait for a result. `step` is that for batches like the first.
    """

    def __init__(
        self,
        context: EstimatorContext,
        step: Step,
        values: RunState,
        pipeline: Pipeline,
        sampling: SamplingSeed,
    ):
        self._context = context
        self._runtime = context.runtime
        self._step = step
        self._pipeline = pipeline
        self._is_single = (
            pipeline.is_single
            or context.config.fast_dev_run
            # Stored executables have single batches.
            or context.config.executables is not None
        )
        self._values = values
        self._sampling = sampling
        self._reseeded: set[str] = set()
        self._reseed(step)
        self._loop_state = PredictionState(values, LoopResults(values.step))
        self._fetch: tuple[str, ...] = ()
        self._yielded_batches = 0
        self._prepared = StepsByShape(step, self._runtime.program.store)
        self._rooms = Rooms(self._batch_bytes, self._is_single)
        self._sizes = RunSizes()
        self._patience = Patience()
        self._size_after: Callable[[int], int] = lambda begun: 1
        self._buffers = Buffers()
        # The started runs, and the values that the last of them assigns.
        self._running: collections.deque[Running] = collections.deque()
        self._ahead: ArraysByPath = {}
        # The error of a batch whose run could not be made.
        self._failed: Exception | None = None
        # Batches that precede those of the input.
        self._again: collections.deque[Fed] = collections.deque()
        self._begun = 0
        # The values that are only read, until user code edits them.
        self._others: dict[Step, ArraysByPath] = {}
        self._version = values.version

    def run(
        self,
        first: Padded,
        following: Callable[[], Padded | None],
        hooks: Iterable[Hook],
    ) -> Iterator[Predicted]:
        """Yields the predictions of the first and the `following` batches."""
        hook_list = hooks_around(
            hooks, self._context, self._loop_state, self._step.additions.graph
        )
        hook_list.begin()
        self._runtime.values.add_hook_variables(self._values, self._step)
        hook_list.after_create_session()
        if hook_list.see_every_run:
            self._rooms = Rooms(self._batch_bytes, is_single=True)
        self._size_after = SizesBetween(hook_list.run_ends(0), MOST_BATCHES)
        self._running.append(self._start(self._feed([first])))
        if self._rooms.newest > 1:
            self._pipeline.keep_together(first.stacked, self._rooms.newest)
        with (
            Infeed(following, self._read_ahead) as infeed,
            self._progress_shown() as progress,
        ):
            while True:
                progress.show(self._yielded_batches, None)
                running = self._next(infeed)
                hooked = hook_list.before_run()
                if running is None:
                    break
                hooked.start()
                running = self._up_to_date(running, hooked.fetches)
                results = self._finish(running)
                self._call_host(results[0])
                stops = hooked.after_run()
                progress.hide()
                yield from self._yielded(results)
                if stops:
                    break
        hook_list.end()

    @contextlib.contextmanager
    def _progress_shown(self) -> Iterator[Progress]:
        """Shows the number of batches while the caller waits for one."""
        progress = prediction_started(
            self._context.config.progress,
            self._context.mode_devices.batch_sizes[ModeKeys.PREDICT],
        )
        try:
            yield progress
        finally:
            progress.show(self._yielded_batches, None, is_end=True)

    def _next(self, infeed: Infeed[Padded]) -> Running | None:
        """Returns the next run, after starting some more.

        It waits for the input only if no run is started, because the input may wait for
        the last result. If no run could be made for a batch, it raises the error after
        the results of earlier batches are returned.
        """
        if not self._running and self._again:
            self._running.append(self._start(self._again.popleft()))
        elif not self._running and self._failed is not None:
            raise self._failed
        elif not self._running and (padded := next(infeed, None)):
            self._running.append(self._start(self._feed([padded], infeed)))
        while self._running and self._may_begin(infeed):
            padded = infeed.take_ready()
            if padded is None:
                break
            try:
                fed = self._feed([padded], infeed)
            except Exception as error:
                self._failed = error
                break
            self._running.append(self._start(fed))
        return self._running.popleft() if self._running else None

    def _may_begin(self, infeed: Infeed[Padded]) -> bool:
        """Returns whether a run may begin after other started runs."""
        awaited, *following = self._running
        if self._again or self._failed is not None:
            return False
        if not following and not awaited.is_complete:
            return True  # The devices do not become idle then.
        # More batches may arrive before the awaited run is complete.
        size = min(self._sizes.size, self._rooms.newest, self._size_after(self._begun))
        ahead = sum(len(running.fed.batches) for running in following)
        return ahead < max(_AHEAD, size) and infeed.has_ready(size)

    def _feed(self, batches: list[Padded], infeed: Infeed[Padded] | None = None) -> Fed:
        """Copies batches of one shape, and those of `infeed` that are ready and fit."""
        first = batches[0]
        room, shapes = self._rooms.room(first), first.shapes
        size = min(first.space(room), self._sizes.size, self._size_after(self._begun))
        if infeed is not None and size > 1 and not self._running:
            self._patience.note(infeed.gather(size - 1, self._patience.secs))
        while infeed is not None and len(batches) < size:
            padded = infeed.take_ready(lambda padded: padded.shapes == shapes)
            if padded is None:
                break
            batches.append(padded)
        self._begun += len(batches)
        return self._fed(batches, room)

    def _fed(self, batches: Sequence[Padded], room: int) -> Fed:
        loop, first, first_row = self._runtime.loop, batches[0], 0
        if room == 1:
            data = loop.put_one(first.features, first.is_padding)
        elif (features := in_place(batches, room)) is not None:
            is_padding = no_padding(room, len(first.is_padding))
            data = loop.put(ModeKeys.PREDICT, features, is_padding)
            first_row = first.stacked.first_row
        else:
            builder = StackBuilder(self._buffers, first.stacked, len(batches), room)
            for padded in batches:
                builder.add(padded.stacked)
            data = loop.put(ModeKeys.PREDICT, *builder.built().padded_to(room))
        return Fed(tuple(batches), self._step_for(first), data, room, first_row)

    def _start(self, fed: Fed) -> Running:
        loop, step, before = self._runtime.loop, fed.step, self._ahead
        if step not in self._others:
            self._others[step] = step.split({**self._values, **before})[1]
        values = (
            {p: before.get(p, self._values[p]) for p in step.assigned},
            self._others[step],
            fed.data,
        )
        try:
            if fed.room == 1:
                results = loop.predict(step, *values, self._fetch)
            else:
                results = loop.predict_some(step, *values, fed.steps, self._fetch)
        except Exception as error:
            if (
                not self._yielded_batches
                and not self._running
                and len(fed.batches) == 1
            ):
                raise
            # Results of batches before the failing one are returned first.
            return Running(fed, before, {}, {}, {}, error)
        running = Running(fed, before, *results)
        if running.assigned:
            self._ahead = before | running.assigned
        running.begin_copy()
        return running

    def _step_for(self, padded: Padded) -> Step:
        """Returns the program's step for batches of this shape."""

        def prepare() -> Step:
            step = self._runtime.prepare(
                ModeKeys.PREDICT, padded.features, padded.is_padding
            )
            self._runtime.values.complete(self._values, step)
            self._reseed(step)
            return step

        return self._prepared.prepared(padded.shapes, prepare)

    def _reseed(self, step: Step) -> None:
        """Gives this call its own seeds, each when a step first reads it."""
        paths = {*step.reads} - self._reseeded
        self._reseeded |= paths
        variables = self._runtime.program.store.variables
        self._sampling.reseed(self._values, variables, paths)

    def _batch_bytes(self, padded: Padded) -> int:
        """Returns the bytes of a batch and of its predictions."""
        return padded.stacked.step_bytes + self._runtime.loop.result_bytes(
            self._step_for(padded), padded.features, padded.is_padding
        )

    def _read_ahead(self, padded: Padded) -> int:
        """Returns the number of batches of this size to read ahead, at least two."""
        run = min(self._sizes.size, self._rooms.newest)
        most = max(_LEAST_READ_AHEAD, 2 * run)
        size = max(padded.stacked.step_bytes, 1)
        return max(2, min(most, _MOST_BYTES_AHEAD // size))

    def _up_to_date(self, running: Running, names: Iterable[str]) -> Running:
        """Returns the run, restarted if hooks have changed its tensors or values."""
        names = {*self._step.named_among(names)}
        if self._values.version != self._version:
            self._version = self._values.version
            self._others, self._ahead = {}, {}
            self._fetch = tuple(sorted(names.union(self._fetch)))
            earlier = [running, *self._running]
            started = [self._start(run.fed) for run in earlier]
            self._running = collections.deque(started[1:])
            return started[0]
        if running.error is not None or names <= running.named.keys():
            return running
        self._fetch = tuple(sorted(names.union(self._fetch)))
        ahead, self._ahead = self._ahead, running.before
        running = self._start(running.fed)
        self._ahead = ahead
        return running

    def _finish(self, running: Running) -> list[Result]:
        """Waits for a run, and makes its results available to hooks."""
        try:
            with self._sizes.awaited(len(running.fed.batches)):
                results = running.finish()
        except Exception as error:
            if len(running.fed.batches) == 1:
                error.add_note(
                    f"This happened for batch {self._yielded_batches + 1} of `predict`."
                )
                raise
            return self._finish(self._one_by_one(running))
        self._values.update(running.assigned)
        by_name = results[-1].predicted.by_name
        self._loop_state.outputs = by_name
        self._loop_state.results = LoopResults(
            self._values.step, named={**by_name, **running.named}
        )
        self._loop_state.additions = running.fed.step.additions
        return results

    def _one_by_one(self, failed: Running) -> Running:
        """Starts a failed run's batches singly, so that those before the error run."""
        started = [failed, *self._running]
        self._again.extendleft(
            self._fed([padded], run.fed.room)
            for run in reversed(started)
            for padded in reversed(run.fed.batches)
        )
        self._running.clear()
        self._ahead = failed.before
        return self._start(self._again.popleft())

    def _call_host(self, result: Result) -> None:
        """Calls the `host_call` for a batch."""
        if self._step.host_call is not None:
            call_for_steps(
                self._step.host_call, result.host_call, [self._loop_state.results.step]
            )

    def _yielded(self, results: list[Result]) -> Iterator[Predicted]:
        """Yields the predictions of a run after its first `host_call`."""
        for index, result in enumerate(results):
            if index:
                self._call_host(result)
            self._yielded_batches += 1
            yield result.predicted
