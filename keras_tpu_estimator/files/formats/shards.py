"""Variables that several processes write: their shards, values and writers."""

import abc
import dataclasses
import functools
import gc
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import numpy as np

from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.base.mesh.transfers import alias
from keras_tpu_estimator.files.directory.save_files import SaveFiles

# Many fetched shards of at most this size may be in memory.
_SMALL_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class ShardedVariable:
    """A variable in a save without its values, known to all processes.

    Attributes:
        shape: Its shape in the checkpoint.
        dtype: Its NumPy dtype in the checkpoint.
        writers: The index of the process that writes each shard. A key has the
            attributes `start` and `stop`, which are tuples with an index for
            each dimension, `shape`, and `slices`, which select the shard.

    Example:

    >>> import jax
    >>> from keras_tpu_estimator import checkpoints
    >>> values = checkpoints.ShardValues.from_array(jax.numpy.ones(4))
    >>> for ranges, process in values.variable.writers.items():
    ...     print(ranges, process)
    [0:4] 0
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    writers: Mapping[IndexRanges, int]


def _check_nothing(value: np.ndarray) -> None:
    """Accepts any value."""


@dataclasses.dataclass(frozen=True)
class ShardValues:
    """The values of a variable's shards on the devices of this process.

    Training donates the array as soon as `ShardWriter.begin` returns, so a writer must
    not use it later, except through an alias or a copy.

    Attributes:
        variable: The description of the variable.
        array: The array on the devices. It may have more rows than the
            variable; these are zero. A NumPy array is written by the first
            process.
        fetch: Copies a shard that this process writes to a NumPy array.
        check: Checks a fetched shard of a trained variable; `is_checked` is
            false for others. `part` calls it. A writer that does not use `part`
            calls it for each shard before the save is complete.

    Example:

    >>> import jax
    >>> from keras_tpu_estimator import checkpoints
    >>> values = checkpoints.ShardValues.from_array(jax.numpy.ones(4))
    >>> [values.part(ranges) for ranges in values.variable.writers]
    [array([1., 1., 1., 1.], dtype=float32)]
    """

    variable: ShardedVariable
    array: jax.Array | np.ndarray
    fetch: Callable[[IndexRanges], np.ndarray]
    check: Callable[[np.ndarray], None] = _check_nothing

    @classmethod
    def from_array(
        cls,
        array: jax.Array | np.ndarray,
        dtype: np.dtype | None = None,
        rows: int | None = None,
    ) -> Self:
        """Returns the values of an array.

        Args:
            array: The array, which may be sharded over several processes.
            dtype: Its dtype in the checkpoint. Defaults to the array's.
            rows: The number of rows to save. Defaults to all.

        Returns:
            Values whose shards are fetched one by one.
        """
        shape = array.shape if rows is None else (rows, *array.shape[1:])
        saved_dtype = np.dtype(array.dtype if dtype is None else dtype)
        if isinstance(array, np.ndarray):
            copied = array[: shape[0]] if shape else array
            copied = copied.astype(saved_dtype)
            complete = {IndexRanges.from_shape(shape): 0}
            variable = ShardedVariable(shape, saved_dtype, complete)
            return cls(variable, copied, lambda box: copied)
        devices_array = array

        @functools.cache
        def shards() -> dict[tuple[int, ...], jax.Array]:
            return {
                IndexRanges.from_slices(shard.index, array.shape).start: shard.data
                for shard in devices_array.addressable_shards
                if shard.replica_id == 0
            }

        def fetch(box: IndexRanges) -> np.ndarray:
            fetched = _fetched(shards()[box.start])
            without_padding = fetched[tuple(map(slice, box.shape))]
            return without_padding.astype(saved_dtype, copy=False)

        writers = _writers(array.sharding, array.shape, shape)
        return cls(ShardedVariable(shape, saved_dtype, writers), array, fetch)

    @property
    def is_checked(self) -> bool:
        """Whether `check` must be called for each shard."""
        return self.check is not _check_nothing

    def part(self, box: IndexRanges) -> np.ndarray:
        """Fetches and checks a shard that this process writes.

        Args:
            box: A key of `variable.writers`.

        Returns:
            A NumPy array of the shape `box.shape`, in the checkpoint's dtype.
        """
        value = self.fetch(box)
        self.check(value)
        return value


# A loop saves the same variables each time, on up to thousands of devices.
@functools.lru_cache(maxsize=1 << 14)
def _writers(
    sharding: jax.sharding.Sharding,
    shape: tuple[int, ...],
    saved_shape: tuple[int, ...],
) -> Mapping[IndexRanges, int]:
    saved = IndexRanges.from_shape(saved_shape)
    writers: dict[IndexRanges, int] = {}
    indices: Mapping[Any, Any] = sharding.devices_indices_map(shape)
    for device, index in indices.items():
        box = IndexRanges.from_slices(index, shape).within(saved)
        if not box.is_empty:
            # The first of several devices with the same shard saves it.
            writers.setdefault(box, device.process_index)
    return writers


def _fetched(data: jax.Array) -> np.ndarray:
    """Returns the data of a device; on the CPU the buffer itself."""
    if data.nbytes > _SMALL_BYTES:
        # Earlier fetched shards are freed at a garbage collection.
        gc.collect(0)
    return np.asarray(alias(data))


class ShardWriter(abc.ABC):
    """A writer for the shards that one process has of sharded variables.

    Attributes:
        takes_replicated: Whether a save with sharded variables also passes
            those that are equal on all devices. Defaults to False: the first
            process passes copies of these to `CheckpointFormat.write`.

    Example:

    >>> from keras_tpu_estimator.checkpoints import ShardWriter
    >>> class NoShards(ShardWriter):
    ...     def begin(self, files, step, values, process):
    ...         return lambda: sorted(values)
    """

    takes_replicated: bool = False

    def prepare(self, files: SaveFiles) -> None:
        """Prepares a save in the first process, before any process begins.

        Args:
            files: The files of the save. The directory may be missing.
        """
        del files  # Most writers need no preparation.

    @abc.abstractmethod
    def begin(
        self,
        files: SaveFiles,
        step: int,
        values: Mapping[str, ShardValues],
        process: int,
    ) -> Callable[[], Any]:
        """Begins to write this process's shards, while training waits.

        Args:
            files: The files of the save, equal in all processes.
            step: The global step.
            values: The values by path, with equal paths in all processes.
            process: The index of this process.

        Returns:
            A function that another thread calls while training continues. It
            waits until the shards are on the disk, and returns a receipt: a
            value that JSON can represent. `CheckpointFormat.write` gets the
            receipts of all processes.
        """
