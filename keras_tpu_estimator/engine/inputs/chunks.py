"""The batches in what a dataset has stacked."""

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.engine.inputs.batch import StackedSteps
from keras_tpu_estimator.engine.inputs.batch_source import SourceReader
from keras_tpu_estimator.engine.inputs.checks import BatchCheck


def batches_among(chunks: SourceReader, check: BatchCheck) -> Iterator[StackedSteps]:
    """The batches of a dataset's chunks, without empty ones.

    Args:
        chunks: The items of a `StackedDataset`.
        check: Is shown batches of every size, in order.
    """
    done = 0
    for chunk in chunks:
        batches = []
        for nest in _of_one_size(chunk):
            batch = chunks.batch(nest)
            # TensorFlow never changes its tensors.
            stacked = StackedSteps(batch.features, batch.labels, may_stay=True)
            if check.is_empty(stacked.step(0)):
                chunks.leave_out(stacked.steps)
            else:
                batches.append(stacked)
        for stacked in batches:
            # Two of one size show what all of them would.
            for index in range(min(stacked.steps, 2)):
                shared = check(stacked.step(index), done + index)
            done += stacked.steps
            yield stacked.sharing(shared)


class _Stacked:
    """Some batches of one tensor, with their rows one after the other."""

    def __init__(self, tensor: Any):
        if _is_ragged(tensor):
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


def _of_one_size(chunk: Any) -> Iterator[Any]:
    """The parts of a chunk whose batches have one size, as nests of arrays."""
    if not any(_is_ragged(leaf) for leaf in jax.tree.leaves(chunk)):
        yield chunk
        return
    chunk = jax.tree.map(_Stacked, chunk)
    leaves = jax.tree.leaves(chunk)
    sizes = np.stack([np.diff(leaf.splits) for leaf in leaves])
    changes = 1 + np.flatnonzero(np.any(np.diff(sizes, axis=1), axis=0))
    bounds = [0, *changes.tolist(), sizes.shape[1]]
    for start, stop in itertools.pairwise(bounds):
        between = operator.methodcaller("between", start, stop)
        yield jax.tree.map(between, chunk)


def _is_ragged(tensor: Any) -> bool:
    return hasattr(tensor, "row_splits")
