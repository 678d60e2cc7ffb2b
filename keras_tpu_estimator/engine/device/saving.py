"""The values of a checkpoint, as this process writes them."""

import dataclasses
import gc
from collections.abc import Collection, Mapping
from typing import Self

import jax
import numpy as np

from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.base.mesh.transfers import alias
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.files.formats.hdf5.writer import ShardedVariable
from keras_tpu_estimator.files.formats.orbax.writer import TreeArray

# Many fetched shards of at most this size may be in memory.
_SMALL_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class ToSave:
    """The values that this process writes, by path.

    Attributes:
        whole: Copies of replicated values, only on the chief.
        sharded: Sharded values, which are not copied.
        tree: All values, for formats that all processes write together. The
            other two are empty then.
    """

    whole: Mapping[str, np.ndarray]
    sharded: Mapping[str, ShardedVariable]
    tree: Mapping[str, TreeArray] = dataclasses.field(default_factory=dict)

    @property
    def has_shards(self) -> bool:
        """Whether several processes write."""
        return bool(self.sharded or self.tree)

    @classmethod
    def together(cls, store: VariableStore, values: Mapping[str, jax.Array]) -> Self:
        """Returns all values as a `tree`."""
        tree = {
            path: TreeArray.of(
                value,
                np.dtype(store.saved_dtypes.get(path, value.dtype)),
                _cut(store, path, value),
            )
            for path, value in values.items()
        }
        return cls({}, {}, tree)

    @classmethod
    def of(
        cls,
        store: VariableStore,
        whole: Mapping[str, jax.Array],
        sharded: Mapping[str, jax.Array],
    ) -> Self:
        """Returns values in the dtypes and numbers of rows of checkpoints.

        Args:
            whole: The replicated values that this process writes, by path.
            sharded: The sharded values.
        """
        copies = on_host(whole)
        for path in copies.keys() & store.saved_dtypes.keys():
            copies[path] = copies[path].astype(store.saved_dtypes[path])
        for path in copies.keys() & store.rows.keys():
            copies[path] = copies[path][: store.rows[path]]
        parts = {
            path: spread_of(
                value,
                store.saved_dtypes.get(path, value.dtype),
                store.rows.get(path),
            )
            for path, value in sharded.items()
        }
        return cls(copies, parts)


def _cut(store: VariableStore, path: str, value: jax.Array) -> int | None:
    """Returns the variable's number of rows if its array has more."""
    rows = store.rows.get(path)
    return None if rows is None or rows == value.shape[0] else rows


def spread_of(
    value: jax.Array, dtype: np.dtype, rows: int | None = None
) -> ShardedVariable:
    """Returns an array whose shards are fetched one by one.

    Args:
        rows: The number of rows to save. Defaults to all.
    """
    shape = value.shape if rows is None else (rows, *value.shape[1:])
    saved = IndexRanges.whole(shape)
    hosts = {}
    # The first of several cores with the same shard saves it.
    for shard in value.global_shards:
        box = IndexRanges.of(shard.index, value.shape).within(saved)
        if shard.replica_id == 0 and not box.is_empty:
            hosts[box] = shard.device.process_index
    own = {
        IndexRanges.of(shard.index, value.shape).start: shard.data
        for shard in value.addressable_shards
        if shard.replica_id == 0
    }

    def part(box: IndexRanges) -> np.ndarray:
        fetched = _fetched(own[box.start])
        rows_of_it = fetched[tuple(map(slice, box.shape))]
        return rows_of_it.astype(dtype, copy=False)

    return ShardedVariable(shape, dtype, hosts, part)


def on_host(
    values: Mapping[str, jax.Array | np.ndarray],
) -> dict[str, np.ndarray]:
    """Returns copies of values on the host, which training does not donate."""
    fetched = jax.device_get(dict(values))
    return {
        # The CPU returns the buffer itself.
        path: np.array(fetched[path]) if _is_on_cpu(value) else fetched[path]
        for path, value in values.items()
    }


def check_whole(what: str, wanted: Collection[str], present: Collection[str]) -> None:
    """Checks that this process has all shards of some variables.

    Raises:
        ValueError: It lacks shards of one.
    """
    parts = sorted(set(wanted) - set(present))
    if parts:
        raise ValueError(
            f"{what} must have complete variables on each host. Received "
            f"{len(parts)} sharded over several hosts, such as {parts[0]!r}. "
            "Set RunConfig(checkpoint_format='hdf5'), omit shard_optimizer, "
            "or use fewer cores per replica."
        )


def _fetched(data: jax.Array) -> np.ndarray:
    """Returns the data of a device; on the CPU the buffer itself."""
    if data.nbytes > _SMALL_BYTES:
        # Earlier fetched shards are freed at a garbage collection.
        gc.collect(0)
    return np.asarray(alias(data))


def _is_on_cpu(value: jax.Array | np.ndarray) -> bool:
    if not isinstance(value, jax.Array):
        return True
    return any(device.platform == "cpu" for device in value.devices())
