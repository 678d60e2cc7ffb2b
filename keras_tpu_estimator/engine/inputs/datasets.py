"""Datasets of `tf.data`.

`tf.data` stacks batches without Python. The state of an iterator is the checkpoint
that `tf.train.Checkpoint(iterator=...)` writes. Sparse tensors become dense ones,
because devices have no sparse tensors.
"""

import atexit
import functools
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from keras_tpu_estimator.api.config.tpu_config import InputPipelineConfig
from keras_tpu_estimator.base.common.thread_exits import block_returning_threads
from keras_tpu_estimator.base.upstream.tensorflow_names import (
    without_prefetch,
)
from keras_tpu_estimator.engine.inputs.batch_source import BatchSource
from keras_tpu_estimator.engine.inputs.deployment import InputPlan
from keras_tpu_estimator.engine.inputs.stacking import StackSize, even_share

# Starting to stack takes as long as reading this number of single batches.
_WORTH_STACKING = 64
# `tf.data` copies each stack into new memory, which the system maps page by page.
# Larger batches are copied faster one by one, into memory that is reused.
_MOST_STACKED_BYTES = 2**18
# The assumed number of examples in batches of unknown size.
_ANY_SIZE = 128
_STATE = "tf.data"
_NAME = "iterator"


class Dataset(BatchSource):
    """A `tf.data.Dataset` of batches."""

    def check(self, plan: InputPlan) -> None:
        """Checks that calls are not per core, and that tensors are dense."""
        if plan.pipeline_config == InputPipelineConfig.PER_SHARD_V1:
            raise TypeError(
                "With PER_SHARD_V1 input_fn must return tensors for one "
                "core, not a Dataset. Received: "
                f"{type(self._value).__name__}. Use PER_HOST_V1 or PER_HOST_V2 "
                "in TPUConfig.per_host_input_for_training."
            )
        _check_dense(self._value.element_spec)

    def items(self, state: dict[str, Any] | None = None) -> Iterator[Any]:
        """Returns an iterator over the dataset, from a state if there is one."""
        if state is None:
            return iter(self._value)
        return _restored(self._value, state[_STATE])

    def state_of(self, items: Iterator[Any]) -> dict[str, Any]:
        """Returns the files of the iterator's checkpoint."""
        return {_STATE: _written(items)}

    def stacked_for(
        self, steps: int, batch_size: int | None, stack_size: StackSize
    ) -> int:
        """Returns the number of batches that `tf.data` should stack, or 0."""
        if not can_be_stacked(self._value):
            return 0
        step_bytes = _step_bytes(self._value, batch_size)
        if step_bytes > _MOST_STACKED_BYTES:
            return 0
        share = even_share(steps, step_bytes, stack_size)
        # A stack of one batch would be a useless copy.
        return share if share > 1 else 0

    def in_stacks(self, batches: int) -> "StackedDataset":
        """Returns a source with that many batches in an item."""
        return StackedDataset(self._value, batches)

    @staticmethod
    def release(items: list[Iterator[Any]]) -> None:
        """Releases the iterators in a list without waiting.

        TensorFlow waits for a thread that tunes the dataset. That thread checks whether
        to end at doubling intervals of up to a minute, and often misses its wake-up.
        """
        release(items.clear)


class StackedDataset(Dataset):
    """The batches of a dataset, several in each item."""

    def __init__(self, dataset: Any, batches: int):
        super().__init__(_stack(dataset, batches).prefetch(1))
        self.stacked = batches


def _stack(dataset: Any, batches: int) -> Any:
    """Returns a dataset with that many batches, of any sizes, in an item.

    The user's `prefetch` is removed, because it would wake a thread for each batch.
    """
    dataset = without_prefetch(dataset)
    specs = sys.modules["tensorflow"].nest.flatten(dataset.element_spec)
    if all(spec.shape.is_fully_defined() for spec in specs):
        # `ragged_batch` would trace a function without effect.
        return dataset.batch(batches)
    return dataset.ragged_batch(batches)


def can_be_stacked(dataset: Any) -> bool:
    """Returns whether a dataset is long enough, and of numbers that can be stacked."""
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
    """Returns the bytes of one batch; `size` is the default number of examples."""
    tensorflow = sys.modules["tensorflow"]
    specs = tensorflow.nest.flatten(dataset.element_spec)
    # A list has numbers, also after `tf.disable_v2_tensorshape()`.
    shapes = [spec.shape.as_list() for spec in specs]
    return sum(
        math.prod(shape) * (rows or size or _ANY_SIZE) * spec.dtype.size
        for spec, (rows, *shape) in zip(specs, shapes, strict=True)
    )


def _check_dense(element_spec: Any) -> None:
    tensorflow = sys.modules["tensorflow"]
    allowed = (tensorflow.TensorSpec, tensorflow.NoneTensorSpec)
    for path, spec in jax.tree_util.tree_leaves_with_path(element_spec):
        if not isinstance(spec, allowed):
            raise TypeError(
                f"The dataset's element{jax.tree_util.keystr(path)} must be "
                f"a dense tensor. Received: {spec}. Make it dense in the "
                "dataset, for instance with tf.sparse.to_dense or .to_tensor()."
            )


def _written(iterator: Any) -> dict[str, bytes]:
    """Returns the files of a `tf.data` iterator's checkpoint by suffix."""
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
    """Checks that a file name has no path separators."""
    if os.path.basename(suffix) != suffix or "\\" in suffix:
        raise ValueError(
            "The names of an iterator's files must not have path separators. "
            f"Received a saved state with {suffix!r}. Delete the file with the "
            "iterator state, which another program has written."
        )


def _restored(dataset: Any, files: dict[str, bytes]) -> Any:
    """Returns a `tf.data` iterator in the state of a checkpoint's files."""
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


# While the process uses no CPU time, a thread in TensorFlow is stuck, or sleeps.
_PATIENCE_SECS = 1.0
_MAXIMUM_SECS = 60.0
_IDLE_SHARE = 0.02
_released: set[threading.Thread] = set()
_abandoned: set[threading.Thread] = set()


def release(function: Callable[[], object]) -> None:
    """Calls a function that releases something, without waiting.

    While Python exits, no thread starts, and the function is not called. An error can
    leave an iterator of `predict` open until then.
    """
    if sys.is_finalizing():
        return
    thread = threading.Thread(
        target=lambda: _run(function), name="deletion", daemon=True
    )
    _end_at_exit()
    _released.add(thread)
    thread.start()


def leave(thread: threading.Thread) -> None:
    """Lets Python exit while a thread is in TensorFlow."""
    _end_at_exit()
    _abandoned.add(thread)


def end_threads() -> None:
    """Waits for all functions of `release`, except for those that are stuck.

    Threads that are left cannot return to Python.
    """
    until = time.monotonic() + _MAXIMUM_SECS
    for thread in list(_released):
        if not _ends(thread, until):
            break
    if any(thread.is_alive() for thread in _released | _abandoned):
        block_returning_threads()


def _ends(thread: threading.Thread, until: float) -> bool:
    """Waits for a thread while the process is busy."""
    while thread.is_alive() and time.monotonic() < until:
        used = time.process_time()
        thread.join(_PATIENCE_SECS)
        if time.process_time() - used < _IDLE_SHARE * _PATIENCE_SECS:
            break
    return not thread.is_alive()


def _run(function: Callable[[], object]) -> None:
    try:
        function()
    finally:
        _released.discard(threading.current_thread())


@functools.cache
def _end_at_exit() -> None:
    atexit.register(end_threads)


# A missing float is zero. A missing integer may be an id, and zero is a valid id, so
# that only a front end has a value for it.
_ZEROS: Mapping[str, int] = {"f": 0}


def in_dense_tensors(dataset: Any, missing: Mapping[str, int] = _ZEROS) -> Any:
    """Returns a `tf.data.Dataset` with dense tensors instead of sparse ones.

    `missing` maps NumPy's kinds of dtypes to the values of missing cells. Tensors of
    other kinds stay sparse.
    """
    nest = sys.modules["tensorflow"].nest
    spec = dataset.element_spec
    if not any(_has_value(leaf, missing) for leaf in nest.flatten(spec)):
        return dataset

    def converted(*element: Any) -> Any:
        tree = element if isinstance(spec, tuple) else element[0]
        return nest.map_structure(lambda leaf: dense(leaf, missing), tree)

    return dataset.map(converted)


def dense(tensor: Any, missing: Mapping[str, int] = _ZEROS) -> Any:
    """Makes a tensor dense as `in_dense_tensors` does; other values stay unchanged."""
    if not _has_value(tensor, missing):
        return tensor
    sparse = sys.modules["tensorflow"].sparse
    value = missing[_kind(tensor)]
    # The user's code or a client may have any order of indices.
    dense_tensor = sparse.to_dense(sparse.reorder(tensor), value)
    dense_tensor.set_shape(tensor.shape)
    return dense_tensor


def _has_value(sparse: Any, missing: Mapping[str, int]) -> bool:
    """Returns whether a sparse tensor or spec has a value for missing cells."""
    tensorflow = sys.modules["tensorflow"]
    kinds = (tensorflow.SparseTensor, tensorflow.SparseTensorSpec)
    return isinstance(sparse, kinds) and _kind(sparse) in missing


def _kind(sparse: Any) -> str:
    """Returns NumPy's kind of a dtype, with bfloat16 among floats."""
    if sparse.dtype.is_floating:
        return "f"
    is_signed = sparse.dtype.is_integer and not sparse.dtype.is_unsigned
    return "i" if is_signed else "other"
