"""Functions of the host that receive results of each step.

An `Outfeed` passes results to its thread. There, `TrainingMetrics` accumulates the
`train_metrics`, and `call_for_steps` calls the `host_call`, whose summaries go to
the metric writers.
"""

import concurrent.futures
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

import jax
import numpy as np

from keras_tpu_estimator.api.hooks.session import MetricCounts, NoCounts
from keras_tpu_estimator.api.model_fn.spec_checks import HostFunction
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.engine.device.host_metrics import HostMetrics
from keras_tpu_estimator.files.summary import recording
from keras_tpu_estimator.files.summary.kinds import Summary
from keras_tpu_estimator.files.summary.metric_writer import SeveralWriters
from keras_tpu_estimator.files.summary.writer import integer_step


class Outfeed:
    """A queue that passes results to a function on a separate thread, in order.

    At most `depth` results wait. The next `put`, or the end of the `with` block, raises
    an error of `consume`.
    """

    def __init__(self, consume: Callable[..., None], depth: int = 2):
        self._consume = consume
        self._depth = depth
        self._pending: list[concurrent.futures.Future[None]] = []
        self._thread = concurrent.futures.ThreadPoolExecutor(
            1, thread_name_prefix="outfeed"
        )

    def put(self, *result: Any) -> None:
        """Enqueues a result. Waits while too many are pending."""
        self._pending.append(self._thread.submit(self._consume, *result))
        self.wait(self._depth)

    def wait(self, pending: int = 0) -> None:
        """Waits until at most `pending` results remain."""
        while len(self._pending) > pending:
            self._pending.pop(0).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type | None, *details: object) -> None:
        try:
            if error_type is None:
                self.wait()
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)


class TrainingMetrics:
    """The `train_metrics` of one `train`, with separate counts for each reader.

    The thread of `outfeed` calls `update`.
    """

    def __init__(self, metrics: HostMetrics | None, outfeed: Outfeed):
        self._metrics = metrics
        self._outfeed = outfeed
        self._counted: list[HostMetrics] = []

    def update(self, steps: PyTree) -> None:
        """Adds steps, as in `HostMetrics.update`, to all counts."""
        for metrics in self._counted:
            metrics.update(steps)

    def counts(self) -> MetricCounts:
        """Returns new counts, which start at the next step."""
        if self._metrics is None:
            return NoCounts()
        counted = self._metrics.another()
        self._counted.append(counted)
        return _Counts(counted, self._outfeed)


class _Counts:
    """Counts that one thread updates and another one reads."""

    def __init__(self, metrics: HostMetrics, outfeed: Outfeed):
        self._metrics = metrics
        self._outfeed = outfeed

    def result(self) -> dict[str, Any]:
        """Returns the metrics by name, with scalars as floats."""
        self._outfeed.wait()
        return {
            name: float(value) if np.ndim(value) == 0 else value
            for name, value in self._metrics.result().items()
        }

    def counts(self) -> dict[str, Any]:
        """Returns the argument of `resume`."""
        self._outfeed.wait()
        return {**self._metrics.counts()}

    def resume(self, counts: Mapping[str, Any]) -> None:
        """Continues from counts, before the first step."""
        self._metrics.resume(counts)

    def reset(self) -> None:
        """Resets the counts."""
        self._outfeed.wait()
        self._metrics.reset()


class OwnSummaries(Protocol):
    """The destination of summaries that a `host_call` records without a writer."""

    def at(self, number: int) -> contextlib.AbstractContextManager[Any]:
        """Returns a context that receives the summaries of the call of one step."""


class ToWriters(recording.Sink):
    """A sink that passes summaries to metric writers."""

    def __init__(self, writer: SeveralWriters):
        self._writer = writer

    def take(self, summary: Summary, data: Any, step: Any) -> bool:
        """Writes one summary."""
        reduced = summary.reduced(summary.tensors(data, np))
        self._writer.write_summary(integer_step(step), summary, reduced)
        return True


class EveryFewSteps:
    """A writer of the first call's summaries, and then at an interval of steps.

    An interval of `None` or 0 means never.
    """

    def __init__(self, writer: SeveralWriters, every: int | None):
        self._writer = writer
        self._every = every
        self._last: int | None = None

    def at(self, number: int) -> contextlib.AbstractContextManager[Any]:
        """Receives the summaries of one call, if the interval has passed."""
        is_due = self._last is None or number >= self._last + (self._every or 0)
        if not self._every or not is_due:
            return contextlib.nullcontext()
        self._last = number
        return recording.AsDefault(ToWriters(self._writer), None, self._writer.flush)


class LastOfAll(recording.Sink):
    """The last summary of each tag, which is written after all calls."""

    def __init__(self) -> None:
        self._stored: dict[str, tuple[Summary, Any, Any]] = {}

    def at(self, number: int) -> contextlib.AbstractContextManager[Any]:
        """Receives the summaries of one call."""
        del number
        return recording.AsDefault(self, None, lambda: None)

    def take(self, summary: Summary, data: Any, step: Any) -> bool:
        """Replaces the stored summary of a tag."""
        reduced = summary.reduced(summary.tensors(data, np))
        self._stored[summary.tag] = (summary, reduced, step)
        return True

    def write(self, writer: SeveralWriters) -> None:
        """Writes the stored summaries."""
        for summary, reduced, step in self._stored.values():
            writer.write_summary(int(np.asarray(step)), summary, reduced)


def call_for_steps(
    host_call: HostFunction,
    tensors: PyTree,
    numbers: Sequence[int],
    every: int = 1,
    summaries: OwnSummaries | None = None,
) -> None:
    """Calls a `host_call` for some steps, which are the steps of its summaries.

    Args:
        tensors: The stacked tensors, of shape `[steps, ...]`.
        numbers: The global step of each, in which the first step is 1. In
            evaluation all are equal.
        every: The interval of calls in steps, starting at step 1.
        summaries: The destination of summaries that `host_call` records without
            a writer. `None` discards them.
    """
    leaves, structure = jax.tree.flatten(tensors)
    steps = zip(numbers, *map(np.asarray, leaves), strict=True)
    no_summaries = contextlib.nullcontext()
    with recording.host_calls():
        for number, *rows in steps:
            if (number - 1) % every == 0:
                recording.set_step(number)
                with no_summaries if summaries is None else summaries.at(number):
                    host_call.call(jax.tree.unflatten(structure, rows))
