"""One call of `predict`: a stream of batches in, a stream of rows out."""

import collections
import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.device.runtime import Runtime
from keras_tpu_estimator.hooks.session_run_hook import Hook
from keras_tpu_estimator.inputs.infeed import Infeed
from keras_tpu_estimator.inputs.padding import pad
from keras_tpu_estimator.inputs.pipeline import Pipeline
from keras_tpu_estimator.loops.host_calls import call_for_steps
from keras_tpu_estimator.loops.live_model import hooks_around
from keras_tpu_estimator.loops.predicted import Predicted
from keras_tpu_estimator.loops.progress import PredictionProgress
from keras_tpu_estimator.loops.staging import first_step
from keras_tpu_estimator.model_fn.outside_compilation import with_host_tensors
from keras_tpu_estimator.program.steps import Step
from keras_tpu_estimator.program.store import Values

# How many steps the devices are given beside the one that is awaited.
_AHEAD = 4
# How many are read ahead of these, and how large they may be together.
_MOST_READ_AHEAD = 8
_MOST_BYTES_AHEAD = 2**25


@dataclasses.dataclass(frozen=True)
class Padded:
    """One step to predict for.

    Attributes:
        features: Nest of NumPy arrays, padded to the batch size.
        is_padding: Booleans of shape `[batch]`.
        examples: How many rows are no padding.
    """

    features: Any
    is_padding: np.ndarray
    examples: int


class PaddedSteps:
    """The single steps of an input, padded to one size.

    Args:
        pipeline: The input.
        size: The batch size to pad to; by default that of the first batch.
    """

    def __init__(self, pipeline: Pipeline, size: int | None):
        self._pipeline = pipeline
        self._size = size

    def next(self) -> Padded | None:
        """The next step; `None` at the end."""
        batch = self._pipeline.take(1)
        if batch is None:
            return None
        features, _ = first_step(batch)
        self._size = max(self._size or 0, batch.examples)
        return Padded(*pad(features, self._size), batch.examples)


class PredictionLoop:
    """Feeds, runs and accompanies the devices in one `predict`.

    Args:
        runtime: The model.
        step: The step of PREDICT.
        values: The variables' values by path.
        steps: The input.
    """

    def __init__(
        self, runtime: Runtime, step: Step, values: Values, steps: PaddedSteps
    ):
        self._runtime = runtime
        self._loop = runtime.loop
        self._step = step
        self._steps = steps
        self._fetch: tuple[str, ...] = ()
        self._progress = PredictionProgress(values)

    def run(self, first: Padded, hooks: Iterable[Hook]) -> Iterator[Predicted]:
        """Yields the predictions of each batch, padding cut off.

        Args:
            first: The first step.
            hooks: Called around each batch.
        """
        hook_list = hooks_around(
            hooks, self._runtime, self._progress, ModeKeys.PREDICT
        )
        hook_list.begin()
        hook_list.after_create_session()
        self._state = self._runtime.model.state(
            self._progress.values, slots=False
        )
        with Infeed(self._steps.next, _read_ahead(first)) as infeed:
            started = self._started(first, infeed)
            running = next(started, None)
            while True:
                hooked = hook_list.before_run()
                if running is None:
                    break
                hooked.start()
                running = self._with_fetches(running, hooked.fetches)
                predicted = running.finish()
                if running.host_call is not None:
                    self._call_host(running.host_call)
                self._progress.outputs = predicted.by_name
                self._progress.fetched = {
                    **self._progress.outputs,
                    **running.fetched,
                }
                stops = hooked.after_run()
                yield predicted
                if stops:
                    break
                running = next(started, None)
        hook_list.end()

    def _started(
        self, first: Padded, infeed: Infeed[Padded]
    ) -> Iterator["Running"]:
        """The steps in order, with some more under way after each.

        The input is waited for only when nothing is under way: it may itself
        be waiting for the last answer.
        """
        started = collections.deque([self._start(first)])
        while started:
            while len(started) <= _AHEAD and (step := infeed.take_ready()):
                started.append(self._start(step))
            yield started.popleft()
            if not started and (step := next(infeed, None)):
                started.append(self._start(step))

    def _with_fetches(
        self, running: "Running", names: Iterable[str]
    ) -> "Running":
        """The same step, once more if it was started without some names."""
        wanted = {*self._step.named_among(names)}
        if wanted <= running.fetched.keys():
            return running
        self._fetch = tuple(sorted(wanted.union(self._fetch)))
        return self._start(running.step)

    def _call_host(self, tensors: Any) -> None:
        stacked = jax.tree.map(lambda a: np.asarray(a)[None], tensors)
        call_for_steps(self._step.host_call, stacked, [self._progress.step])

    def _start(self, step: Padded) -> "Running":
        data = self._loop.put_one(step.features, step.is_padding)
        return Running(
            step, *self._loop.predict(self._state, data, self._fetch)
        )


@dataclasses.dataclass(frozen=True)
class Running:
    """A step that the devices are at work on.

    Attributes:
        step: What it is about.
        predictions: Nest of arrays that will be there.
        fetched: Other tensors by name.
        host_call: The tensors of a `host_call`, or `None`.
    """

    step: Padded
    predictions: Any
    fetched: dict[str, Any]
    host_call: Any

    def finish(self) -> Predicted:
        """Waits for the predictions; returns them without padding."""
        predictions = with_host_tensors(
            jax.tree.map(self._cut, self.predictions), finish=np.asarray
        )
        return Predicted(predictions, self.step.examples)

    def _cut(self, leaf: jax.Array) -> np.ndarray:
        array = np.asarray(leaf)
        has_rows = array.shape[:1] == self.step.is_padding.shape
        return array[: self.step.examples] if has_rows else array


def _read_ahead(step: Padded) -> int:
    """How many steps of this size to read ahead, two at least."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(step.features))
    return max(2, min(_MOST_READ_AHEAD, _MOST_BYTES_AHEAD // max(size, 1)))
