"""Summaries in a `model_fn`: tensors that leave the devices when it is time.

While `model_fn` is traced they are collected, and become outputs of its step.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_tpu_estimator.files.summary.event_writer import EventWriter
from keras_tpu_estimator.files.summary.kinds import Summary
from keras_tpu_estimator.files.summary.metric_writer import SeveralWriters
from keras_tpu_estimator.files.summary.recording import Sink
from keras_tpu_estimator.ground.base.dtype_changes import as_dtype


@dataclasses.dataclass(frozen=True)
class Collected:
    """A summary and its tensors: a node of JAX's trees.

    Attributes:
        tensors: What `Summary.tensors` returned, or what became of it.
        step: The step that it was given, or `None`.
        events: Where it is written, or `None` for where all others are.
    """

    summary: Summary
    tensors: Any
    step: Any = None
    events: EventWriter | None = None

    def of_cores(self, mean: Callable[[Any], Any]) -> "Collected":
        """Averages the tensors over the cores, if they are to be averaged."""
        if not self.summary.is_averaged:
            return self
        return dataclasses.replace(self, tensors=mean(self.tensors))

    def split(self, is_split: bool) -> "Collected":
        """Which of its tensors are concatenated over cores that share a batch.

        Args:
            is_split: Whether they share it.
        """
        concatenated = is_split and not self.summary.is_averaged
        return dataclasses.replace(self, tensors=concatenated, step=False)

    def averaged(self) -> "Collected":
        """The part of it that is averaged over micro-batches."""
        tensors = self.tensors if self.summary.is_averaged else ()
        return dataclasses.replace(self, tensors=tensors)

    def concatenated(self) -> "Collected":
        """The part of it that is concatenated over micro-batches."""
        tensors = () if self.summary.is_averaged else self.tensors
        return dataclasses.replace(self, tensors=tensors, step=None)

    def with_rows(self, rows: "Collected") -> "Collected":
        """The whole of which the averaged and concatenated parts are these."""
        if self.summary.is_averaged:
            return self
        return dataclasses.replace(self, tensors=rows.tensors)

    def reduced(self) -> "Collected":
        """The same with its tensors made small."""
        reduced = self.summary.reduced(self.tensors)
        return dataclasses.replace(self, tensors=reduced)


jax.tree_util.register_dataclass(
    Collected,
    data_fields=["tensors", "step"],
    meta_fields=["summary", "events"],
)


class Collector(Sink):
    """Collects the summaries of one call of `model_fn`.

    Args:
        is_on: Whether they are wanted.
        events: Where they are written. Defaults to where all others are.
    """

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
        """Collects what goes to a writer, too: there are only traces yet."""
        return Collector(self._is_on, sink.events, self.collected)

    def take(self, summary: Summary, data: Any, step: Any) -> bool:
        """Collects one summary."""
        if self._is_on:
            tensors = summary.tensors(data, jnp)
            if step is not None:
                if not isinstance(step, jax.Array):
                    step = as_dtype(step, jnp.int32, "The step of a summary")
                step = jnp.asarray(step, jnp.int32).reshape(())
            self.collected.append(
                Collected(summary, tensors, step, self.events)
            )
        return self._is_on


def write(
    collected: Sequence[Collected],
    writer: SeveralWriters,
    step: int,
    without: Collection[str] = (),
) -> None:
    """Brings summaries to the host and writes them.

    Args:
        collected: Summaries with tensors on the devices.
        step: The step of those that were given none.
        without: Tags to leave out there.
    """
    wanted = [
        each
        for each in collected
        if each.events is not None or each.summary.tag not in without
    ]
    if not wanted:
        return
    for each in jax.device_get(_reduced(wanted)):
        its_step = step if each.step is None else int(each.step)
        if each.events is None:
            writer.write_summary(its_step, each.summary, each.tensors)
        else:
            each.events.write(each.summary.serialized(each.tensors), its_step)


@jax.jit
def _reduced(collected: list[Collected]) -> list[Collected]:
    return [each.reduced() for each in collected]
