"""The batches of one `predict`, padded to one size."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.engine.inputs.batch import StackedSteps
from keras_tpu_estimator.engine.inputs.padding import pad
from keras_tpu_estimator.engine.inputs.pipeline import Pipeline
from keras_tpu_estimator.engine.inputs.stacking import form
from keras_tpu_estimator.ground.base.types import Features


@dataclasses.dataclass(frozen=True)
class Padded:
    """One batch to predict for.

    Attributes:
        stacked: One step: its features, padded to the batch size, and in place
            of labels booleans that are true for padding.
        examples: How many rows are no padding.
    """

    stacked: StackedSteps
    examples: int

    @property
    def features(self) -> Features:
        """Nest of NumPy arrays of shape `[batch, ...]`."""
        return self.stacked.step(0).features

    @property
    def is_padding(self) -> np.ndarray:
        """Booleans of shape `[batch]`."""
        return np.asarray(self.stacked.labels[0])

    @functools.cached_property
    def shapes(self) -> Any:
        """Equal for batches that one program serves."""
        return form(self.stacked.features)

    def space(self, room: int) -> int:
        """Returns the number of batches of a run that begins with this one.

        Args:
            room: The number of batches that the program has room for. A run
                ends with the stack that its first batch lies in.
        """
        stack = in_place([self], room)
        return room if stack is None else room - self.stacked.place


def in_place(batches: Sequence[Padded], room: int) -> Features | None:
    """Returns the features of the stack that batches lie in, if they do.

    Args:
        batches: Batches of one shape.
        room: The number of batches in the stack.

    Returns:
        The features of all its batches; `None` if these do not follow each
        other there.
    """
    first = batches[0].stacked
    if first.room is None or len(jax.tree.leaves(first.room)[0]) != room:
        return None
    for place, padded in enumerate(batches, start=first.place):
        if padded.stacked.room is not first.room or padded.stacked.place != place:
            return None
    return first.room[0]


class PaddedSteps:
    """The single steps of an input, padded to the size asked for.

    A batch without examples is a step of padding only: the caller may wait for
    the answer.

    Args:
        size: The batch size to pad to; by default batches stay as they are.
    """

    def __init__(self, pipeline: Pipeline, size: int | None):
        self._pipeline = pipeline
        self._size = size

    def next(self) -> Padded | None:
        """Returns the next step; `None` at the end."""
        batch = self._pipeline.take(1)
        if batch is None:
            return None
        examples = batch.examples
        size = max(self._size or 1, examples)
        if examples == size:
            is_padding = np.zeros((1, size), bool)
            stacked = StackedSteps(
                batch.features, is_padding, batch.may_stay, batch.room, batch.place
            )
            return Padded(stacked, examples)
        features, is_padding = pad(batch.step(0).features, size)
        features, is_padding = jax.tree.map(
            lambda leaf: leaf[None], (features, is_padding)
        )
        return Padded(StackedSteps(features, is_padding, True), examples)
