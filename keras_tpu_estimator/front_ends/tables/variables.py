"""The variables of embedding tables, which are always sharded."""

import contextlib
import dataclasses
import random
from collections.abc import Callable, Collection, Iterator, Mapping

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.base.mesh.cores import Cores
from keras_tpu_estimator.base.mesh.sharded_rows import padded_rows
from keras_tpu_estimator.base.tracing.variable_classes import RowsVariable
from keras_tpu_estimator.base.tracing.variables import AnyArraysByPath, ArraysByPath
from keras_tpu_estimator.base.upstream import keras_random, keras_state, keras_variables
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.front_ends.tables.config_spec import (
    EmbeddingConfigSpec,
)
from keras_tpu_estimator.front_ends.tables.tables import TableConfig


@dataclasses.dataclass(frozen=True)
class TableVariables:
    """The variables of embedding tables and of their slots, by original name; rows are
    sharded over `cores`.
    """

    spec: EmbeddingConfigSpec
    cores: Cores
    seed: int | None = None

    @property
    def slot_paths(self) -> set[str]:
        """The paths of all slots."""
        return {p for table in self.spec.tables for p in self._slots_of(table)}

    @property
    def paths(self) -> set[str]:
        """The paths of all tables and slots."""
        return {*self.spec.tables, *self.slot_paths}

    def enter_into(self, store: VariableStore) -> None:
        """Adds them to a program's variables."""
        store.rows.update(
            (path, self._table(path).vocabulary_size) for path in self.paths
        )
        store.slots |= self.slot_paths
        store.add(dict(self._created()), self._initial)

    def _slots_of(self, table: str) -> Collection[str]:
        return self.spec.slots_of(table).values()

    def _name_of_table(self, path: str) -> str:
        return next(
            table
            for table in self.spec.tables
            if path == table or path in self._slots_of(table)
        )

    def _table(self, path: str) -> TableConfig:
        """Returns the table that a variable is, or belongs to."""
        return self.spec.tables[self._name_of_table(path)]

    def _created(self) -> Iterator[tuple[str, keras.Variable]]:
        """Creates the variables, without values."""
        # Values would be on one device, at this point or later.
        with (
            keras_state.fresh_names(),
            keras.StatelessScope(initialize_variables=False),
        ):
            for path in sorted(self.paths):
                table = self._table(path)
                variable = RowsVariable(
                    keras.initializers.Zeros(),
                    shape=(table.vocabulary_size, table.dimension),
                    dtype="float32",
                    trainable=path not in self.slot_paths,
                    name=path.replace("/", "_"),
                )
                keras_variables.set_path(variable, path)
                yield path, variable

    def _initial(
        self,
        paths: Collection[str],
        values: AnyArraysByPath,
        shardings: Mapping[str, jax.sharding.Sharding] | None,
    ) -> ArraysByPath:
        """Returns initial values of some variables, sharded from the start."""
        del values
        at = dict.fromkeys(self.paths, self.cores.rows_sharding)
        at |= shardings or {}
        return {
            path: jax.jit(self._filler(path, at[path]), out_shardings=at[path])()
            for path in sorted(self.paths.intersection(paths))
        }

    def _filler(
        self, path: str, sharding: jax.sharding.Sharding
    ) -> Callable[[], jax.Array]:
        name, table = self._name_of_table(path), self._table(path)
        rows = padded_rows(table.vocabulary_size, sharding)
        if path != name:
            start = self.spec.optimizer_of(name).slots[path[len(name) + 1 :]]
            return lambda: jnp.full((rows, table.dimension), start, "float32")

        def filled() -> jax.Array:
            # The initial rows do not depend on the number of devices.
            with self._seeded(name):
                initial = table.initial()
            return jnp.pad(initial, ((0, rows - table.vocabulary_size), (0, 0)))

        return filled

    def _seeded(self, table: str) -> contextlib.AbstractContextManager[None]:
        if self.seed is None:
            return contextlib.nullcontext()
        # Tables of one shape must start with different values.
        generator = random.Random(f"{self.seed} {table}")
        return keras_random.default_seeds(generator)
