"""The shardings of variables on the devices."""

import functools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.base.common.dtype_changes import as_dtype
from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.base.mesh import transfers
from keras_tpu_estimator.base.mesh.cores import Cores, own_copies, own_cores
from keras_tpu_estimator.base.mesh.sharded_rows import padded_rows
from keras_tpu_estimator.base.tracing.variables import AnyArraysByPath, ArraysByPath
from keras_tpu_estimator.engine.program.store import VariableStore, slot_owners

_logger = logging.getLogger("keras_tpu_estimator")


class VariableShardings:
    """The sharding of each variable of a program."""

    def __init__(self, store: VariableStore, cores: Cores):
        self._store = store
        self._cores = cores
        self._shardings: dict[str, jax.sharding.Sharding] = {}

    def put(self, values: AnyArraysByPath) -> ArraysByPath:
        """Returns copies of values on the devices, padded to the rows there.

        Values that belong on the host stay there.
        """
        on_host = self._on_host(values)
        if on_host:
            on_devices = {p: value for p, value in values.items() if p not in on_host}
            return self.put(on_devices) | on_host
        if self._all_are_replicated:
            return transfers.put_whole(self._cores, values, self._cores.replicated)
        shardings = self.by_path(values)
        return {
            path: transfers.put_whole(
                self._cores, self._padded(path, value), shardings[path]
            )
            for path, value in values.items()
        }

    def sharded(self, paths: Iterable[str]) -> set[str]:
        """Returns the paths of the sharded variables among some."""
        if self._all_are_replicated:
            return set()
        return {
            path
            for path, sharding in self.by_path(paths).items()
            if not sharding.is_fully_replicated
        }

    def put_by_part(
        self, path: str, part: Callable[[IndexRanges], np.ndarray]
    ) -> jax.Array:
        """Makes a variable from the shards that `part` returns at some index ranges."""
        shape = tuple(self._store.variables[path].shape)
        sharding = self.by_path([path])[path]
        return transfers.put_by_part(
            self._shape(path), sharding, _with_zeros(shape, part)
        )

    def by_path(self, paths: Iterable[str]) -> dict[str, jax.sharding.Sharding]:
        """Returns the shardings of some variables."""
        paths = list(paths)
        new = {*paths} - self._shardings.keys()
        if new:
            owners = slot_owners(self._store.variables)
            for path in sorted(new):
                shape = tuple(self._store.variables[path].shape)
                if path in self._store.rows:
                    self._shardings[path] = self._cores.rows_sharding
                    continue
                sharding = self._cores.variable_sharding(path, shape, owners.get(path))
                self._shardings[path] = sharding
            self._log(new - self._store.rows.keys(), owners.keys())
        return {path: self._shardings[path] for path in paths}

    @functools.cached_property
    def in_this_process(self) -> "VariableShardings":
        """The shardings over only the cores of this process."""
        return VariableShardings(self._store, own_cores(self._cores))

    @property
    def are_on_hosts(self) -> bool:
        """Whether other processes have some of the cores."""
        return self._cores.are_on_hosts

    @property
    def need_others(self) -> bool:
        """Whether no process has all shards of some variable."""
        has_tables = self.are_on_hosts and bool(self._store.rows)
        return self._cores.need_others or has_tables

    def own_copies(self, values: ArraysByPath) -> ArraysByPath:
        """Returns the values on only the cores of this process."""
        on_host = self._on_host(values)
        on_devices = {p: value for p, value in values.items() if p not in on_host}
        return own_copies(self._cores, on_devices) | on_host

    def moved(self, values: Mapping[str, Any]) -> ArraysByPath:
        """Returns copies on the devices of values that no longer belong on the host."""
        late = {
            path: as_dtype(
                value, self._store.device_dtype(path), f"The variable {path!r}"
            )
            for path, value in values.items()
            if isinstance(value, np.ndarray) and path not in self._store.on_host
        }
        return self.put(late) if late else {}

    def _on_host(self, values: AnyArraysByPath) -> dict[str, Any]:
        """Returns the values that belong on the host."""
        on_host = self._store.on_host
        return {p: np.asarray(values[p]) for p in on_host if p in values}

    def pinned(self, values: ArraysByPath) -> ArraysByPath:
        """Constrains values of a trace to their shardings.

        Otherwise XLA chooses shardings separately for each program.
        """
        if self._all_are_replicated:
            return values
        return jax.lax.with_sharding_constraint(values, self.by_path(values))

    def check(self) -> None:
        """Checks that each rule of `layout_map` matches a variable."""
        layout = self._cores.layout
        unmatched = layout.unmatched(self._store.variables) if layout else []
        if unmatched:
            variables = self._store.variables
            owners = sorted(variables.keys() - slot_owners(variables).keys())
            raise ValueError(
                "Each rule of `layout_map` must match the complete path of a "
                f"variable. Received rules that match none: {unmatched}. The "
                f"paths are {owners}. Use '.*kernel' to match any path that ends "
                "in kernel."
            )

    @property
    def _all_are_replicated(self) -> bool:
        return self._cores.layout is None and not self._store.rows

    def _shape(self, path: str) -> tuple[int, ...]:
        """Returns the shape of a variable on the devices."""
        shape = tuple(self._store.variables[path].shape)
        if path not in self._store.rows:
            return shape
        rows = padded_rows(shape[0], self.by_path([path])[path])
        return (rows, *shape[1:])

    def _padded(
        self, path: str, value: jax.Array | np.ndarray
    ) -> jax.Array | np.ndarray:
        """Returns a value with the rows that it has on the devices."""
        padded_shape = self._shape(path)
        if path not in self._store.rows or value.shape == padded_shape:
            return value
        shape = tuple(self._store.variables[path].shape)
        if value.shape != shape:
            raise ValueError(
                f"The value for {path!r} must have the variable's shape "
                f"{shape}. Received shape {value.shape}. Reshape the value."
            )
        pad = jnp.pad if isinstance(value, jax.Array) else np.pad
        more = [
            (0, size - length) for size, length in zip(padded_shape, shape, strict=True)
        ]
        return pad(value, more)

    def _log(self, paths: Collection[str], slots: Collection[str]) -> None:
        """Logs the number of split variables, unless the user has set their layout."""
        layout = self._cores.layout
        if layout is None or layout.rules is not None:
            return
        shapes = {
            path: tuple(self._store.variables[path].shape)
            for path in sorted(paths)
            if not self._shardings[path].is_fully_replicated
        }
        texts = {
            path: f"{path} of shape {shape} into shards of "
            f"{self._shardings[path].shard_shape(shape)}"
            for path, shape in shapes.items()
        }
        for text in texts.values():
            _logger.debug("%s.", text)
        if not texts:
            return
        largest = max(texts, key=lambda p: (p not in slots, math.prod(shapes[p])))
        _logger.info(
            "%d of %d variables are split over the devices, such as %s. To change "
            "this, set RunConfig.layout_map.",
            len(texts),
            len(paths),
            texts[largest],
        )


def _with_zeros(
    shape: Sequence[int], read: Callable[[IndexRanges], np.ndarray]
) -> Callable[[IndexRanges], np.ndarray]:
    """Returns a function that reads shards with rows of zeros beyond a shape."""

    def part(box: IndexRanges) -> np.ndarray:
        inside = box.within(IndexRanges.from_shape(shape))
        if inside == box:
            return read(box)
        if inside.is_empty:
            # One number has the dtype.
            first = read(IndexRanges((0,) * len(shape), (1,) * len(shape)))
            return np.zeros(box.shape, first.dtype)
        more = [
            (0, size - length)
            for size, length in zip(box.shape, inside.shape, strict=True)
        ]
        return np.pad(read(inside), more)

    return part
