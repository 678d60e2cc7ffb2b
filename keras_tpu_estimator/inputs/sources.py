"""Sources of stacked steps: of single batches, or of whole chunks at once."""

import contextlib
import math
import sys
from collections.abc import Iterator
from typing import Any
from typing import Protocol

import jax
import numpy as np

from keras_tpu_estimator.inputs.batch import Batch
from keras_tpu_estimator.inputs.batch import Example
from keras_tpu_estimator.inputs.forms import check_dense
from keras_tpu_estimator.inputs.forms import example_of
from keras_tpu_estimator.inputs.forms import hide_gpus


class Source(Protocol):
    """Something that steps can be taken from."""

    def take(self, steps: int) -> Batch | None:
        """Up to so many steps of equal shapes; `None` at the end."""

    def close(self) -> None:
        """Frees what the source holds."""


class StepSource:
    """Stacks single batches, those of equal shapes together.

    Args:
        examples: Yields the batches.
        max_bytes: No more is stacked once a stack has so many bytes. Defaults
            to no limit.
    """

    def __init__(
        self, examples: Iterator[Example], max_bytes: float = math.inf
    ):
        self._examples = examples
        self._max_bytes = max_bytes
        self._ahead: Example | None = None

    def take(self, steps: int) -> Batch | None:
        """Up to so many steps of equal shapes; `None` at the end."""
        taken: list[Example] = []
        while len(taken) < steps:
            example = self._next()
            if example is None:
                break
            if taken and example.size != taken[0].size:
                self._ahead = example
                break
            taken.append(example)
            if len(taken) * example.bytes >= self._max_bytes:
                break
        if not taken:
            return None
        features, labels = jax.tree.map(
            _stack, *[(example.features, example.labels) for example in taken]
        )
        return Batch(features, labels)

    def close(self) -> None:
        """Closes the generator, unless a thread is still inside it."""
        if hasattr(self._examples, "close"):
            with contextlib.suppress(ValueError):
                self._examples.close()

    def _next(self) -> Example | None:
        if self._ahead is not None:
            example, self._ahead = self._ahead, None
            return example
        return next(self._examples, None)


class ChunkSource:
    """Reads many steps of a dataset at once, stacked by `tf.data` itself.

    Args:
        dataset: A `tf.data.Dataset` of batches of fixed shapes.
        chunk: How many steps to read at once.
    """

    def __init__(self, dataset: Any, chunk: int):
        hide_gpus()
        chunks = dataset.batch(chunk).prefetch(1)
        self._chunks = chunks.as_numpy_iterator()
        self._rest: Batch | None = None

    def take(self, steps: int) -> Batch | None:
        """Up to so many steps; `None` at the end."""
        parts: list[Batch] = []
        while steps > 0:
            part = self._next()
            if part is None:
                break
            if part.steps > steps:
                self._rest = _slice(part, slice(steps, None))
                part = _slice(part, slice(steps))
            parts.append(part)
            steps -= part.steps
        if len(parts) <= 1:
            return parts[0] if parts else None
        features, labels = jax.tree.map(
            lambda *leaves: np.concatenate(leaves),
            *[(part.features, part.labels) for part in parts],
        )
        return Batch(features, labels)

    def close(self) -> None:
        """Drops the dataset's iterator."""
        self._chunks = iter(())

    def _next(self) -> Batch | None:
        if self._rest is not None:
            part, self._rest = self._rest, None
            return part
        for value in self._chunks:
            example = example_of(value)
            return Batch(example.features, example.labels)
        return None


def has_fixed_shapes(dataset: Any, size: int | None) -> bool:
    """Whether a dataset's batches are all of one shape, and of numbers.

    Args:
        dataset: A `tf.data.Dataset`.
        size: The batch size they have to have, or `None` for any.
    """
    tensorflow = sys.modules["tensorflow"]
    check_dense(dataset.element_spec)
    specs = tensorflow.nest.flatten(dataset.element_spec)
    return all(
        spec.shape.is_fully_defined()
        and spec.shape.rank > 0
        and spec.dtype != tensorflow.string
        and spec.shape[0] == (size or specs[0].shape[0])
        for spec in specs
    )


def _stack(*leaves: np.ndarray) -> np.ndarray:
    # One alone need not be copied.
    return np.stack(leaves) if len(leaves) > 1 else leaves[0][np.newaxis]


def _slice(batch: Batch, steps: slice) -> Batch:
    features, labels = jax.tree.map(
        lambda leaf: leaf[steps], (batch.features, batch.labels)
    )
    return Batch(features, labels)
