"""One call of `predict`: a stream of batches in, a stream of rows out."""

import collections
import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.hooks.session_run_hook import Hook
from keras_tpu_estimator.inputs.infeed import Infeed
from keras_tpu_estimator.inputs.padding import pad
from keras_tpu_estimator.inputs.pipeline import Pipeline
from keras_tpu_estimator.loops.feeding import first_step
from keras_tpu_estimator.loops.host_calls import call_for_steps
from keras_tpu_estimator.loops.live_model import hooks_around
from keras_tpu_estimator.loops.progress import PredictionProgress
from keras_tpu_estimator.modes import ModeKeys
from keras_tpu_estimator.outside_compilation import with_host_tensors
from keras_tpu_estimator.program.steps import Step
from keras_tpu_estimator.program.store import Values
from keras_tpu_estimator.runtime import Runtime

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

    def run(self, first: Padded, hooks: Iterable[Hook]) -> Iterator[Any]:
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
                predictions = running.finish()
                if running.host_call is not None:
                    self._call_host(running.host_call)
                self._progress.outputs = _by_name(predictions)
                self._progress.fetched = {
                    **self._progress.outputs,
                    **running.fetched,
                }
                stops = hooked.after_run()
                yield predictions
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


class WithoutRows(np.ndarray):
    """A prediction without a row for each example.

    An array like others, but that `rows` can tell: by its shape alone it may
    look like the predictions of another number of examples.
    """


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

    def finish(self) -> Any:
        """Waits for the predictions; returns them without padding.

        Those that have no row for each example come as they are.
        """
        return with_host_tensors(
            jax.tree.map(self._cut, self.predictions),
            finish=lambda result: _marked(result, self.step.examples),
        )

    def _cut(self, leaf: jax.Array) -> np.ndarray:
        array = _marked(leaf, len(self.step.is_padding))
        is_whole = isinstance(array, WithoutRows)
        return array if is_whole else array[: self.step.examples]


def _marked(values: Any, examples: int) -> np.ndarray:
    """An array, whose class says whether it has a row for each example."""
    array = np.asarray(values)
    has_rows = array.ndim > 0 and len(array) == examples
    return array if has_rows else array.view(WithoutRows)


def _read_ahead(step: Padded) -> int:
    """How many steps of this size to read ahead, two at least."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(step.features))
    return max(2, min(_MOST_READ_AHEAD, _MOST_BYTES_AHEAD // max(size, 1)))


def select(predictions: Any, keys: Any) -> Any:
    """The predictions under some keys; all of them for no keys.

    Raises:
        ValueError: Predictions are no dict, or have none of the keys.
    """
    if not keys:
        return predictions
    keys = [keys] if isinstance(keys, str) else list(keys)
    if not isinstance(predictions, Mapping):
        raise ValueError(
            "`predict_keys` need predictions in a dict. Received keys "
            f"{keys} and predictions of type {type(predictions).__name__}."
        )
    selected = {k: v for k, v in predictions.items() if k in keys}
    if not selected:
        raise ValueError(
            f"Expected `predict_keys` among {sorted(predictions)}. Received: "
            f"{keys}"
        )
    return selected


def _by_name(predictions: Any) -> dict[str, Any]:
    """Predictions as Keras's callbacks get them."""
    if isinstance(predictions, Mapping):
        return dict(predictions)
    return {"outputs": predictions}


def rows(predictions: Any) -> Iterator[Any]:
    """The predictions of single examples.

    Raises:
        ValueError: One of them has no row for each example.
    """
    if not isinstance(predictions, Mapping):
        _check_rows({"predictions": predictions})
        yield from predictions
        return
    _check_rows(predictions)
    if len(predictions) == 1:
        ((name, values),) = predictions.items()
        for value in values:
            yield {name: value}
        return
    for values in zip(*predictions.values(), strict=True):
        yield dict(zip(predictions, values, strict=True))


def _check_rows(predictions: Mapping[str, Any]) -> None:
    for name, values in predictions.items():
        if isinstance(values, WithoutRows):
            raise ValueError(
                f"The prediction {name!r} should have one row for each "
                f"example. Received shape {values.shape}. Keep the batch as "
                "its first axis, leave it out with `predict_keys`, or pass "
                "yield_single_examples=False."
            )
