"""Datasets of `tf.data`.

What `tf.data` stacks by itself costs no time of Python's. Its state is what
`tf.train.Checkpoint(iterator=...)` writes.
"""

import math
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import jax

from keras_tpu_estimator.engine.inputs.batch_source import BatchSource
from keras_tpu_estimator.engine.inputs.deployment import InputPlan
from keras_tpu_estimator.engine.inputs.releasing import release
from keras_tpu_estimator.engine.inputs.stacking import StackSize, even_share
from keras_tpu_estimator.ground.tracing.tensorflow_internals import (
    without_prefetch,
)
from keras_tpu_estimator.spec.config.tpu_config import InputPipelineConfig

# Setting the stacking up takes as long as reading so many single batches.
_WORTH_STACKING = 64
# Assumed of batches whose size nobody knows.
_ANY_SIZE = 128
_STATE = "tf.data"
_NAME = "iterator"


class Dataset(BatchSource):
    """A `tf.data.Dataset` of batches."""

    def check(self, plan: InputPlan) -> None:
        """Checks that no core has a call of its own, and for plain tensors."""
        if plan.way == InputPipelineConfig.PER_SHARD_V1:
            raise TypeError(
                "With PER_SHARD_V1 input_fn should return tensors for one "
                "core, not a Dataset. Received: "
                f"{type(self._value).__name__}. Use PER_HOST_V1 or PER_HOST_V2 "
                "in TPUConfig.per_host_input_for_training."
            )
        _check_dense(self._value.element_spec)

    def items(self, state: dict[str, Any] | None = None) -> Iterator[Any]:
        """An iterator over the dataset, in a state if one is given."""
        if state is None:
            return iter(self._value)
        return _restored(self._value, state[_STATE])

    def state_of(self, items: Iterator[Any]) -> dict[str, Any]:
        """The files of a checkpoint of the iterator."""
        return {_STATE: _written(items)}

    def stacked_for(
        self, steps: int, batch_size: int | None, stack_size: StackSize
    ) -> int:
        """How many batches `tf.data` is to stack, if it can."""
        if not can_be_stacked(self._value):
            return 0
        step_bytes = _step_bytes(self._value, batch_size)
        share = even_share(steps, step_bytes, stack_size)
        # A stack of one would be a copy for nothing.
        return share if share > 1 else 0

    def in_stacks(self, batches: int) -> "StackedDataset":
        """The same with so many batches an item."""
        return StackedDataset(self._value, batches)

    @staticmethod
    def release(items: list[Iterator[Any]]) -> None:
        """Lets go of the iterators in a list, without waiting for it.

        TensorFlow waits here for a thread that tunes the dataset; that looks
        for its end at times that double, up to once a minute, and often misses
        being woken for it.
        """
        release(items.clear)


class StackedDataset(Dataset):
    """The batches of a dataset, so many at once.

    Args:
        batches: How many of them an item is made of.
    """

    def __init__(self, dataset: Any, batches: int):
        super().__init__(_stack(dataset, batches).prefetch(1))
        self.stacked = batches


def _stack(dataset: Any, batches: int) -> Any:
    """A dataset of so many batches an item, which may differ in size.

    They are read ahead by the stack: a `prefetch` of each would be a thread to
    wake, and to wait for, for each batch.
    """
    dataset = without_prefetch(dataset)
    specs = sys.modules["tensorflow"].nest.flatten(dataset.element_spec)
    if all(spec.shape.is_fully_defined() for spec in specs):
        # `ragged_batch` would trace a function that changes nothing.
        return dataset.batch(batches)
    return dataset.ragged_batch(batches)


def can_be_stacked(dataset: Any) -> bool:
    """Whether a dataset's batches are numbers and differ in size only.

    It is not worth it for a dataset that is known to be short.
    """
    tensorflow = sys.modules["tensorflow"]
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


def _step_bytes(dataset: Any, size: int | None) -> int:
    """Bytes of one batch, of so many examples if it is not known better."""
    tensorflow = sys.modules["tensorflow"]
    specs = tensorflow.nest.flatten(dataset.element_spec)
    # A list is one of numbers, after `tf.disable_v2_tensorshape()` too.
    shapes = [spec.shape.as_list() for spec in specs]
    return sum(
        math.prod(shape) * (own or size or _ANY_SIZE) * spec.dtype.size
        for spec, (own, *shape) in zip(specs, shapes, strict=True)
    )


def _check_dense(element_spec: Any) -> None:
    tensorflow = sys.modules["tensorflow"]
    allowed = (tensorflow.TensorSpec, tensorflow.NoneTensorSpec)
    for path, spec in jax.tree_util.tree_leaves_with_path(element_spec):
        if not isinstance(spec, allowed):
            raise TypeError(
                f"The dataset's element{jax.tree_util.keystr(path)} should be "
                f"a dense tensor. Received: {spec}. Make it dense in the "
                "dataset, for instance with tf.sparse.to_dense or .to_tensor()."
            )


def _written(iterator: Any) -> dict[str, bytes]:
    """The files of a `tf.data` iterator's checkpoint by suffix."""
    tensorflow = sys.modules["tensorflow"]
    with tempfile.TemporaryDirectory() as directory:
        prefix = os.path.join(directory, _NAME)
        tensorflow.train.Checkpoint(iterator=iterator).write(prefix)
        files = {}
        for name in sorted(os.listdir(directory)):
            with open(os.path.join(directory, name), "rb") as file:
                files[name.removeprefix(_NAME)] = file.read()
        return files


def _check_suffix(suffix: str) -> None:
    """Checks that the name of a file stays in its folder."""
    if os.path.basename(suffix) != suffix or "\\" in suffix:
        raise ValueError(
            "The names of an iterator's files must not have path separators. "
            f"Received a saved state with {suffix!r}. Delete the file with the "
            "position in the input, which another program has written."
        )


def _restored(dataset: Any, files: dict[str, bytes]) -> Any:
    """An iterator of `tf.data` in the state of a checkpoint's files."""
    tensorflow = sys.modules["tensorflow"]
    iterator = iter(dataset)
    with tempfile.TemporaryDirectory() as directory:
        prefix = os.path.join(directory, _NAME)
        for suffix, content in files.items():
            _check_suffix(suffix)
            with open(prefix + suffix, "wb") as file:
                file.write(content)
        status = tensorflow.train.Checkpoint(iterator=iterator).read(prefix)
        status.assert_consumed()
    return iterator
