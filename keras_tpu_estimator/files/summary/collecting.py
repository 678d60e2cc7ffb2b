"""Summaries in a `model_fn`, which become outputs of its traced step.

The tensors are copied to the host only when summaries are written.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_tpu_estimator.base.common.dtype_changes import as_dtype
from keras_tpu_estimator.files.summary.event_writer import EventWriter
from keras_tpu_estimator.files.summary.kinds import Summary
from keras_tpu_estimator.files.summary.metric_writer import SeveralWriters
from keras_tpu_estimator.files.summary.recording import Sink


@dataclasses.dataclass(frozen=True)
class Collected:
    """A summary as a node of JAX's pytrees, with the result of `Summary.tensors`.

    Without `step` and `events`, those of the run are used.
    """

    summary: Summary
    tensors: Any
    step: Any = None
    events: EventWriter | None = None

    def of_cores(self, mean: Callable[[Any], Any]) -> "Collected":
        """Averages the tensors over devices, if the summary is averaged."""
        if not self.summary.is_averaged:
            return self
        return dataclasses.replace(self, tensors=mean(self.tensors))

    def split(self, is_split: bool) -> "Collected":
        """Marks tensors to concatenate over devices that share a batch."""
        concatenated = is_split and not self.summary.is_averaged
        return dataclasses.replace(self, tensors=concatenated, step=False)

    def averaged(self) -> "Collected":
        """Returns the part that is averaged over micro-batches."""
        tensors = self.tensors if self.summary.is_averaged else ()
        return dataclasses.replace(self, tensors=tensors)

    def concatenated(self) -> "Collected":
        """Returns the part that is concatenated over micro-batches."""
        tensors = () if self.summary.is_averaged else self.tensors
        return dataclasses.replace(self, tensors=tensors, step=None)

    def with_rows(self, rows: "Collected") -> "Collected":
        """Joins the averaged and the concatenated part."""
        if self.summary.is_averaged:
            return self
        return dataclasses.replace(self, tensors=rows.tensors)

    def reduced(self) -> "Collected":
        """Returns the same summary with reduced tensors."""
        reduced = self.summary.reduced(self.tensors)
        return dataclasses.replace(self, tensors=reduced)


jax.tree_util.register_dataclass(
    Collected,
    data_fields=["tensors", "step"],
    meta_fields=["summary", "events"],
)


class Collector(Sink):
    """The summaries of one call of `model_fn`, or none if `is_on` is false."""

    def __init__(
        self,
        is_on: bool,
        events: EventWriter | None = None,
        collected: list[Collected] | None = None,
    ):
        self._is_on = is_on
        self.events = events
        self.collected = [] if collected is None else collected

    def replaced_by(self, sink: Sink) -> Sink:
        """Collects a writer's summaries, because values are still traced."""
        return Collector(self._is_on, sink.events, self.collected)

    def take(self, summary: Summary, data: Any, step: Any) -> bool:
        """Collects one summary."""
        if self._is_on:
            tensors = summary.tensors(data, jnp)
            if step is not None:
                if not isinstance(step, jax.Array):
                    step = as_dtype(step, jnp.int32, "The step of a summary")
                step = jnp.asarray(step, jnp.int32).reshape(())
            self.collected.append(Collected(summary, tensors, step, self.events))
        return self._is_on


def write(
    collected: Sequence[Collected],
    writer: SeveralWriters,
    step: int,
    without: Collection[str] = (),
) -> None:
    """Copies summaries to the host and writes them.

    `step` is the default step. The default writer omits the tags in `without`.
    """
    selected = [
        item
        for item in collected
        if item.events is not None or item.summary.tag not in without
    ]
    if not selected:
        return
    for item in jax.device_get(_reduced(selected)):
        its_step = step if item.step is None else int(item.step)
        if item.events is None:
            writer.write_summary(its_step, item.summary, item.tensors)
        else:
            item.events.write(item.summary.serialized(item.tensors), its_step)


@jax.jit
def _reduced(collected: list[Collected]) -> list[Collected]:
    return [item.reduced() for item in collected]
