"""A `host_call` for each step, and where the summaries of it go."""

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

from keras_tpu_estimator.files.summary import recording
from keras_tpu_estimator.files.summary.kinds import Summary
from keras_tpu_estimator.files.summary.metric_writer import SeveralWriters
from keras_tpu_estimator.files.summary.writer import integer_step
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.spec.model_fn.spec_checks import HostFunction


class OwnSummaries(Protocol):
    """Where summaries go that a `host_call` records without a writer."""

    def at(self, number: int) -> contextlib.AbstractContextManager[Any]:
        """Takes those of one call.

        Args:
            number: Its global step.
        """


class ToWriters(recording.Sink):
    """Gives summaries to metric writers.

    Args:
        writer: Takes them.
    """

    def __init__(self, writer: SeveralWriters):
        self._writer = writer

    def take(self, summary: Summary, data: Any, step: Any) -> bool:
        """Writes one summary."""
        reduced = summary.reduced(summary.tensors(data, np))
        self._writer.write_summary(integer_step(step), summary, reduced)
        return True


class EveryFewSteps:
    """Writes them for the first call, and then every so many steps.

    Args:
        writer: Takes them.
        every: How many steps; `None` or 0 for never.
    """

    def __init__(self, writer: SeveralWriters, every: int | None):
        self._writer = writer
        self._every = every
        self._last: int | None = None

    def at(self, number: int) -> contextlib.AbstractContextManager[Any]:
        """Takes those of one call, if enough steps have been made."""
        is_due = self._last is None or number >= self._last + (self._every or 0)
        if not self._every or not is_due:
            return contextlib.nullcontext()
        self._last = number
        return recording.GoingTo(ToWriters(self._writer), None, self._writer.flush)


class LastOfAll(recording.Sink):
    """Keeps the last of each tag, and writes it when all calls are made."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Summary, Any, Any]] = {}

    def at(self, number: int) -> contextlib.AbstractContextManager[Any]:
        """Takes those of one call."""
        del number
        return recording.GoingTo(self, None, lambda: None)

    def take(self, summary: Summary, data: Any, step: Any) -> bool:
        """Keeps one summary in place of those before it."""
        reduced = summary.reduced(summary.tensors(data, np))
        self._kept[summary.tag] = (summary, reduced, step)
        return True

    def write(self, writer: SeveralWriters) -> None:
        """Writes what was kept."""
        for summary, reduced, step in self._kept.values():
            writer.write_summary(int(np.asarray(step)), summary, reduced)


def call_for_steps(
    host_call: HostFunction,
    tensors: Nest,
    numbers: Sequence[int],
    every: int = 1,
    summaries: OwnSummaries | None = None,
) -> None:
    """Calls a `host_call`; its summaries have the number as their step.

    Args:
        host_call: The function.
        tensors: Its tensors, stacked: `[steps, ...]`.
        numbers: The global step of each, in which the first step is 1; in
            evaluation they are all the same.
        every: It is called for step 1 and then every so many. Defaults to 1.
        summaries: Where those go that it records without a writer. Defaults
            to nowhere.
    """
    leaves, structure = jax.tree.flatten(tensors)
    steps = zip(numbers, *map(np.asarray, leaves), strict=True)
    own = contextlib.nullcontext()
    with recording.host_calls():
        for number, *rows in steps:
            if (number - 1) % every == 0:
                recording.set_step(number)
                with own if summaries is None else summaries.at(number):
                    host_call.call(jax.tree.unflatten(structure, rows))
