"""Where the values of variables lie on the cores."""

import functools
import logging
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.engine.program.slot_owners import slot_owners
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.ground.base.index_ranges import IndexRanges
from keras_tpu_estimator.ground.mesh import host_cores, transfers
from keras_tpu_estimator.ground.mesh.cores import Cores
from keras_tpu_estimator.ground.mesh.sharded_rows import padded_rows
from keras_tpu_estimator.ground.tracing.variables import AnyArraysByPath, ArraysByPath

_logger = logging.getLogger("keras_tpu_estimator")


class VariablePlaces:
    """Where each variable of a program lies."""

    def __init__(self, store: VariableStore, cores: Cores):
        self._store = store
        self._cores = cores
        self._places: dict[str, jax.sharding.Sharding] = {}

    def put(self, values: AnyArraysByPath) -> ArraysByPath:
        """Copies values to the devices, with more rows where these have."""
        if self._all_are_whole:
            return transfers.put_whole(self._cores, values, self._cores.replicated)
        places = self._places_of(values)
        return {
            path: transfers.put_whole(
                self._cores, self._padded(path, value), places[path]
            )
            for path, value in values.items()
        }

    def sharded(self, paths: Iterable[str]) -> set[str]:
        """Those of some variables that no core has whole."""
        if self._all_are_whole:
            return set()
        return {
            path
            for path, place in self._places_of(paths).items()
            if not place.is_fully_replicated
        }

    def put_by_part(
        self, path: str, part: Callable[[IndexRanges], np.ndarray]
    ) -> jax.Array:
        """Makes a variable of parts, one after the other.

        Args:
            part: Gives what a core is to have of it.
        """
        shape = tuple(self._store.variables[path].shape)
        place = self._places_of([path])[path]
        return transfers.put_by_part(self._shape(path), place, _with_zeros(shape, part))

    def of(self, paths: Iterable[str]) -> dict[str, jax.sharding.Sharding]:
        """Where some variables lie."""
        return self._places_of(paths)

    @functools.cached_property
    def own(self) -> "VariablePlaces":
        """The same on this host's cores alone."""
        return VariablePlaces(self._store, host_cores.own_cores(self._cores))

    @property
    def are_on_hosts(self) -> bool:
        """Whether some of the cores belong to other processes."""
        return self._cores.are_on_hosts

    @property
    def need_others(self) -> bool:
        """Whether no host has all of what lies over several."""
        has_tables = self.are_on_hosts and bool(self._store.rows)
        return self._cores.need_others or has_tables

    def own_copies(self, values: ArraysByPath) -> ArraysByPath:
        """The same values for this host's cores alone."""
        return host_cores.own_copies(self._cores, values)

    def pinned(self, values: ArraysByPath) -> ArraysByPath:
        """Has values of a trace stay where they are.

        XLA would choose anew what is most convenient for each program.
        """
        if self._all_are_whole:
            return values
        return jax.lax.with_sharding_constraint(values, self._places_of(values))

    def check(self) -> None:
        """Checks that each rule is about some variable."""
        layout = self._cores.layout
        unmatched = layout.unmatched(self._store.variables) if layout else []
        if unmatched:
            variables = self._store.variables
            own = sorted(variables.keys() - slot_owners(variables).keys())
            raise ValueError(
                "Each rule of `layout_map` should match the whole path of a "
                f"variable. Received rules that match none: {unmatched}. The "
                f"paths are {own}; '.*kernel' matches any that ends so."
            )

    @property
    def _all_are_whole(self) -> bool:
        return self._cores.layout is None and not self._store.rows

    def _shape(self, path: str) -> tuple[int, ...]:
        """The shape of a variable on the devices."""
        shape = tuple(self._store.variables[path].shape)
        if path not in self._store.rows:
            return shape
        rows = padded_rows(shape[0], self._places_of([path])[path])
        return (rows, *shape[1:])

    def _padded(
        self, path: str, value: jax.Array | np.ndarray
    ) -> jax.Array | np.ndarray:
        """A value as devices have it, with more rows where these have."""
        wanted = self._shape(path)
        if path not in self._store.rows or value.shape == wanted:
            return value
        shape = tuple(self._store.variables[path].shape)
        if value.shape != shape:
            raise ValueError(
                f"The value for {path!r} should have the variable's shape "
                f"{shape}. Received shape {value.shape}."
            )
        pad = jnp.pad if isinstance(value, jax.Array) else np.pad
        more = [(0, size - own) for size, own in zip(wanted, shape, strict=True)]
        return pad(value, more)

    def _places_of(self, paths: Iterable[str]) -> dict[str, jax.sharding.Sharding]:
        paths = list(paths)
        new = {*paths} - self._places.keys()
        if new:
            owners = slot_owners(self._store.variables)
            for path in sorted(new):
                shape = tuple(self._store.variables[path].shape)
                if path in self._store.rows:
                    self._places[path] = self._cores.rows_sharding
                    continue
                place = self._cores.variable_sharding(path, shape, owners.get(path))
                self._places[path] = place
                self._log(path, shape, place)
        return {path: self._places[path] for path in paths}

    def _log(
        self, path: str, shape: tuple[int, ...], place: jax.sharding.Sharding
    ) -> None:
        layout = self._cores.layout
        if (
            layout is not None
            and layout.rules is None
            and not place.is_fully_replicated
        ):
            _logger.info(
                "%s of shape %s is split into parts of %s: set "
                "RunConfig.layout_map to have it otherwise.",
                path,
                shape,
                place.shard_shape(shape),
            )


def _with_zeros(
    shape: Sequence[int], read: Callable[[IndexRanges], np.ndarray]
) -> Callable[[IndexRanges], np.ndarray]:
    """Reads parts of what may have more rows on the devices, of zeros.

    Args:
        shape: Its own shape.
    """

    def part(box: IndexRanges) -> np.ndarray:
        there = box.within(IndexRanges.whole(shape))
        if there == box:
            return read(box)
        if there.is_empty:
            # One number, for its dtype.
            first = read(IndexRanges((0,) * len(shape), (1,) * len(shape)))
            return np.zeros(box.shape, first.dtype)
        more = [
            (0, size - own) for size, own in zip(box.shape, there.shape, strict=True)
        ]
        return np.pad(read(there), more)

    return part
