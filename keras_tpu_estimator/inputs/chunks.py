"""Reading many batches of a `tf.data.Dataset` at once.

What `tf.data` stacks by itself costs no time of Python's.
"""

import itertools
import math
import operator
import sys
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.inputs.batch import Batch
from keras_tpu_estimator.inputs.checks import BatchCheck
from keras_tpu_estimator.inputs.forms import check_dense
from keras_tpu_estimator.inputs.forms import example_of

# Setting the stacking up takes as long as reading so many single batches.
_WORTH_STACKING = 64
# Assumed of batches whose size nobody knows.
_ANY_SIZE = 128


def can_be_stacked(dataset: Any) -> bool:
    """Whether a dataset's batches are numbers and differ in size only.

    It is not worth it for a dataset that is known to be short.
    """
    tensorflow = sys.modules["tensorflow"]
    check_dense(dataset.element_spec)
    specs = tensorflow.nest.flatten(dataset.element_spec)
    length = int(dataset.cardinality())
    return not 0 <= length < _WORTH_STACKING and all(
        isinstance(spec, tensorflow.TensorSpec)
        and spec.shape.rank
        and spec.shape[1:].is_fully_defined()
        and spec.shape[:1] == specs[0].shape[:1]
        and spec.dtype != tensorflow.string
        for spec in specs
    )


def step_bytes(dataset: Any, size: int | None) -> int:
    """Bytes of one batch, of so many examples if it is not known better."""
    tensorflow = sys.modules["tensorflow"]
    return sum(
        math.prod(spec.shape[1:])
        * (spec.shape[0] or size or _ANY_SIZE)
        * spec.dtype.size
        for spec in tensorflow.nest.flatten(dataset.element_spec)
    )


def stacked_dataset(dataset: Any, steps: int) -> Any:
    """A dataset of chunks: so many of another's batches, stacked."""
    return dataset.ragged_batch(steps).prefetch(1)


def batches_among(chunks: Iterable[Any], check: BatchCheck) -> Iterator[Batch]:
    """The batches of a dataset's chunks.

    Args:
        chunks: Those of `stacked_dataset`.
        check: Is shown batches of every size, in order.

    Yields:
        Some batches of one size.
    """
    done = 0
    for chunk in chunks:
        for batch in _of_one_size(jax.tree.map(_Stacked, chunk)):
            # Two of one size show what all of them would.
            for index in range(min(batch.steps, 2)):
                check(batch.step(index), done + index)
            done += batch.steps
            yield batch


class _Stacked:
    """Some batches of one tensor, with their rows one after the other."""

    def __init__(self, tensor: Any):
        if hasattr(tensor, "row_splits"):
            self.rows = np.asarray(tensor.flat_values)
            self.splits = np.asarray(tensor.row_splits)
        else:
            stack = np.asarray(tensor)
            steps, size = stack.shape[:2]
            self.rows = stack.reshape(steps * size, *stack.shape[2:])
            self.splits = np.arange(steps + 1) * size

    def between(self, start: int, stop: int) -> np.ndarray:
        """Batches of one size, from one number to another."""
        first, last = self.splits[start], self.splits[stop]
        size = (last - first) // (stop - start)
        shape = (stop - start, size, *self.rows.shape[1:])
        return self.rows[first:last].reshape(shape)


def _of_one_size(chunk: Any) -> Iterator[Batch]:
    leaves = jax.tree.leaves(chunk)
    sizes = np.stack([np.diff(leaf.splits) for leaf in leaves])
    changes = 1 + np.flatnonzero(np.any(np.diff(sizes, axis=1), axis=0))
    bounds = [0, *changes.tolist(), sizes.shape[1]]
    for start, stop in itertools.pairwise(bounds):
        between = operator.methodcaller("between", start, stop)
        example = example_of(jax.tree.map(between, chunk))
        yield Batch(example.features, example.labels)
