"""The values that a model has between calls."""

from collections.abc import Collection, Iterator, Mapping

import jax

from keras_tpu_estimator.engine.device import restoring
from keras_tpu_estimator.engine.device.run_state import Source
from keras_tpu_estimator.engine.device.variable_places import VariablePlaces
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.files.warm_start.settings import WarmStartSettings
from keras_tpu_estimator.ground.tracing.variables import AnyArraysByPath, ArraysByPath


class KeptValues(Mapping[str, jax.Array]):
    """The values that a model has between calls, by path, and their source.

    A checkpoint is read only if it has others, or more.

    Args:
        warm_start: Which variables start from another model's checkpoint as
            long as there is none of this one, or `None`.

    Attributes:
        source: Where the same are to be had; `None` if nowhere.
        overridden: Paths of constants that a callback has set.
    """

    def __init__(
        self,
        store: VariableStore,
        places: VariablePlaces,
        warm_start: WarmStartSettings | None,
    ):
        self._store = store
        self._places = places
        self._warm_start = warm_start
        # Whose `init_fn` has set initial values.
        self._initialized: set[Step] = set()
        self.keep({}, None)

    def __getitem__(self, path: str) -> jax.Array:
        return self._values[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def keep(
        self,
        values: ArraysByPath,
        source: Source | None,
        overridden: Collection[str] = (),
    ) -> None:
        """Keeps values in place of those before.

        Args:
            values: The values by path.
        """
        # Last, lest values have the name of others if this is interrupted.
        self.source: Source | None = None
        self._values = values
        self.overridden = frozenset(overridden)
        self.source = source

    def load(
        self, step: Step, checkpoint: str | None, slots: bool = False
    ) -> ArraysByPath:
        """The values that a step begins with.

        Args:
            checkpoint: The prefix of the checkpoint to take them from, or
                `None` for initial values.
            slots: Whether to load the optimizers' variables, too. Defaults to
                `False`.

        Raises:
            ValueError: The checkpoint lacks a variable, or has it in another
                shape.
        """
        source = Source.of(checkpoint)
        if source != self.source:
            self.keep({}, source)
            self._initialized.clear()
        self.source = source  # Under the name that was asked for.
        self._values = usable(self._values)
        wanted = {*step.reads, *self._store.without_slots()}
        if slots:
            wanted |= self._store.slots
        self._fetch(wanted - self._values.keys(), step, checkpoint)
        if checkpoint is None:
            if step not in self._initialized:
                self._initialized.add(step)
                self._put(
                    restoring.assigned_by_init_fn(
                        step.scaffold, self._values, self._store
                    )
                )
            return self._values
        return self._values | self.replaced(step, self._values, checkpoint)

    def replaced(
        self, step: Step, values: AnyArraysByPath, checkpoint: str | None
    ) -> ArraysByPath:
        """What a step's scaffold wants in place of some values.

        Args:
            checkpoint: Where it looks for others, or `None`.
        """
        return restoring.in_place_of(
            step.scaffold, values, checkpoint, self._store, self._places
        )

    def _fetch(self, wanted: set[str], step: Step, checkpoint: str | None) -> None:
        """Keeps values of more variables."""
        if checkpoint is not None and wanted:
            read = restoring.restored_values(
                self._store, self._places, checkpoint, wanted, step.reads
            )
            self.overridden |= self._store.constants & read.keys()
            self._values = self._values | read
        rest = wanted - self._values.keys()
        if rest:
            self._put(
                restoring.initial_values(
                    self._store,
                    self._places,
                    rest,
                    self._values,
                    self._warm_start if checkpoint is None else None,
                )
            )

    def _put(self, values: AnyArraysByPath) -> None:
        if values:
            self._values = self._values | self._places.put(dict(values))


def usable(values: Mapping[str, jax.Array]) -> ArraysByPath:
    """Values but for those that are used up: by training, or Keras's `fit`."""
    return {path: value for path, value in values.items() if not value.is_deleted()}
