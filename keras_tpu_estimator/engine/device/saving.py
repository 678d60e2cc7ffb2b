"""What of a call's values goes into a checkpoint, and how."""

import dataclasses
import gc
from collections.abc import Collection, Mapping
from typing import Self

import jax
import numpy as np

from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.files.formats.hdf5.writer import ShardedVariable
from keras_tpu_estimator.files.formats.orbax.writer import TreeArray
from keras_tpu_estimator.ground.base.index_ranges import IndexRanges
from keras_tpu_estimator.ground.mesh.aliases import alias

# Of parts that are as small, many may be in memory.
_SMALL_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class ToSave:
    """What this host writes.

    Attributes:
        whole: Copies of values by path; on the chief alone.
        sharded: By path, what lies over several cores: nothing is copied.
        tree: By path, all variables where they are written together by the
            hosts that have them. The others are empty then.
    """

    whole: Mapping[str, np.ndarray]
    sharded: Mapping[str, ShardedVariable]
    tree: Mapping[str, TreeArray] = dataclasses.field(default_factory=dict)

    @property
    def has_shards(self) -> bool:
        """Whether hosts write together."""
        return bool(self.sharded or self.tree)

    @classmethod
    def together(cls, store: VariableStore, values: Mapping[str, jax.Array]) -> Self:
        """Values as trees have them.

        Args:
            store: The variables.
            values: All that is saved, by path.
        """
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
        """Values as checkpoints have them.

        Args:
            whole: What this host writes whole, by path.
            sharded: What lies over several cores.
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
    """How many rows are the variable's own, where there are more."""
    rows = store.rows.get(path)
    return None if rows is None or rows == value.shape[0] else rows


def spread_of(
    value: jax.Array, dtype: np.dtype, rows: int | None = None
) -> ShardedVariable:
    """An array whose parts are fetched one by one.

    Args:
        rows: How many of its rows are saved. Defaults to all.
    """
    shape = value.shape if rows is None else (rows, *value.shape[1:])
    saved = IndexRanges.whole(shape)
    hosts = {}
    # Several cores may have the same; the first of them is asked for it.
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
    """Copies of values, which training may use up in the meantime."""
    fetched = jax.device_get(dict(values))
    return {
        # What the CPU gives is the buffer itself.
        path: np.array(fetched[path]) if _is_on_cpu(value) else fetched[path]
        for path, value in values.items()
    }


def check_whole(what: str, wanted: Collection[str], there: Collection[str]) -> None:
    """Checks that this host has all of some variables.

    Raises:
        ValueError: It has only parts of one.
    """
    parts = sorted(set(wanted) - set(there))
    if parts:
        raise ValueError(
            f"{what} should have whole variables on each host. Received "
            f"{len(parts)} that lie over several hosts, such as {parts[0]!r}. "
            "Set RunConfig(checkpoint_format='hdf5'), leave shard_optimizer "
            "out, or use fewer cores per replica."
        )


def _fetched(data: jax.Array) -> np.ndarray:
    """What a device has; on the CPU the buffer itself."""
    if data.nbytes > _SMALL_BYTES:
        # What was fetched before is given back when Python collects.
        gc.collect(0)
    return np.asarray(alias(data))


def _is_on_cpu(value: jax.Array | np.ndarray) -> bool:
    if not isinstance(value, jax.Array):
        return True
    return any(device.platform == "cpu" for device in value.devices())
