"""The owner of the variables' values, and their cache between calls.

Nothing else keeps these arrays: training donates them, evaluation and prediction borrow
them, user code sees them in Keras's variables, and checkpoints copy them.
"""

import contextlib
import threading
from collections.abc import Collection, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.base.common.dtype_changes import as_dtype
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.tracing.variables import (
    AnyArraysByPath,
    ArraysByPath,
    is_accumulator,
)
from keras_tpu_estimator.engine.device import restoring
from keras_tpu_estimator.engine.device.host_values import (
    ShownValues,
    ToSave,
    check_whole,
)
from keras_tpu_estimator.engine.device.run_state import RunState, Source
from keras_tpu_estimator.engine.device.variable_shardings import VariableShardings
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP, VariableStore
from keras_tpu_estimator.files.formats.shards import ShardWriter
from keras_tpu_estimator.files.warm_start.settings import WarmStartSettings


class CachedValues(Mapping[str, jax.Array]):
    """The values of a model between calls, by path, and their source.

    A checkpoint is read only if it has other values, or more. Variables start from
    `warm_start` while this model has no checkpoint. A callback has set the `overridden`
    constants.
    """

    def __init__(
        self,
        store: VariableStore,
        shardings: VariableShardings,
        warm_start: WarmStartSettings | None,
    ):
        self._store = store
        self._shardings = shardings
        self._warm_start = warm_start
        # These steps' `init_fn` has already set initial values.
        self._initialized: set[Step] = set()
        self.replace({}, None)

    def __getitem__(self, path: str) -> jax.Array:
        return self._values[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def replace(
        self,
        values: ArraysByPath,
        source: Source | None,
        overridden: Collection[str] = (),
    ) -> None:
        """Replaces the cached values."""
        # The source is set last, so that an interrupt leaves it unknown.
        self.source: Source | None = None
        self._values = values
        self.overridden = frozenset(overridden)
        self.source = source

    def load(
        self, step: Step, checkpoint: str | None, slots: bool = False
    ) -> ArraysByPath:
        """Loads the values that a step begins with, or raises if they do not fit it."""
        source = Source.from_checkpoint(checkpoint)
        if source != self.source:
            self.replace({}, source)
            self._initialized.clear()
        self.source = source  # With the requested name of the checkpoint.
        self._values = usable(self._values)
        self._values |= self._shardings.moved(self._values)
        paths = {*step.reads, *self._store.without_slots()}
        if slots:
            paths |= self._store.slots
        self._fetch(paths - self._values.keys(), step, checkpoint)
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
        """Returns the values that a scaffold replaces, some from a checkpoint."""
        return restoring.replacements(
            step.scaffold, values, checkpoint, self._store, self._shardings
        )

    def _fetch(self, paths: set[str], step: Step, checkpoint: str | None) -> None:
        """Adds the values of more variables."""
        # Metrics start again in each call, and listing a checkpoint takes long.
        if checkpoint is not None and paths & self._store.restorable():
            read = restoring.restored_values(
                self._store, self._shardings, checkpoint, paths, step.reads
            )
            self.overridden |= self._store.constants & read.keys()
            self._values = self._values | read
        missing = paths - self._values.keys()
        if missing:
            self._put(
                restoring.initial_values(
                    self._store,
                    self._shardings,
                    missing,
                    self._values,
                    self._warm_start if checkpoint is None else None,
                )
            )

    def _put(self, values: AnyArraysByPath) -> None:
        if values:
            self._values = self._values | self._shardings.put(dict(values))


def usable(values: Mapping[str, jax.Array]) -> ArraysByPath:
    """Returns the values that neither training nor Keras's `fit` has donated."""
    return {
        path: value
        for path, value in values.items()
        if isinstance(value, np.ndarray) or not value.is_deleted()
    }


class VariableOwner:
    """The owner of a model's variable values, which `shown` shows to callbacks."""

    def __init__(
        self,
        store: VariableStore,
        shardings: VariableShardings,
        warm_start: WarmStartSettings | None = None,
    ):
        self._store = store
        self._shardings = shardings
        self._put = shardings.put
        self._own_copies = shardings.own_copies
        self._check_shardings = shardings.check
        self._warm_start = warm_start
        self._cached = CachedValues(store, shardings, warm_start)
        self._borrowers = 0
        # A thread must not donate what another is about to borrow.
        self._passing = threading.RLock()
        self.shown = ShownValues(store, shardings.own_copies, self.edit)

    def check_fits(self, step: Step, checkpoint: str) -> None:
        """Raises an error if a checkpoint does not fit a step, without reading it."""
        paths = {*step.reads, *self._store.without_slots()}
        restoring.check_fits(self._store, checkpoint, paths, step.reads)

    @contextlib.contextmanager
    def donated(self, step: Step, checkpoint: str | None) -> Iterator[RunState]:
        """Donates the values to a call of TRAIN, and then caches the new values."""
        self._check_shardings()
        with self._passing:
            values = self._loaded(self._cached, step, checkpoint)
            self._cached.replace({}, None)
            if self._borrowers:
                on_devices = {p: values[p] for p in values.keys() - self._store.on_host}
                values.update(jax.tree.map(jnp.copy, on_devices))
        try:
            yield values
        finally:
            lasting = self._lasting(values, step)
            with self._passing:
                self._cached.replace(lasting, values.source, values.overridden)
            self.shown.assign(lasting)

    @contextlib.contextmanager
    def borrowed(
        self, step: Step, checkpoint: str | None, slots: bool = False
    ) -> Iterator[RunState]:
        """Provides values for EVAL or PREDICT, which stay valid in the `with` block."""
        cached = self._cached
        # All processes make initial values together.
        is_new = checkpoint is None and self._shardings.are_on_hosts
        if self._is_local(step.mode) or (is_new and step.mode == ModeKeys.PREDICT):
            cached = CachedValues(
                self._store, self._shardings.in_this_process, self._warm_start
            )
        with self._passing:
            values = self._loaded(cached, step, checkpoint, slots)
            self._borrowers += 1
        try:
            yield values
        finally:
            with self._passing:
                self._borrowers -= 1

    def of_training(self, step: Step, training: RunState, trained: Step) -> RunState:
        """Returns the current values of a call of TRAIN for EVAL's `step` inside it."""
        self.complete(training, step)
        values = RunState(self._lasting(training, trained), step.mode, training.source)
        self.complete(values, step)
        values.update(self._cached.replaced(step, training, checkpoint=None))
        return values

    def add_hook_variables(self, values: RunState, step: Step) -> None:
        """Adds variables that hooks made, with values from the checkpoint."""
        if not step.additions.enter_new(self._store):
            return
        missing = {*self._store.without_slots()}.difference(values)
        if values.checkpoint is not None:
            restored = restoring.restored_values(
                self._store, self._shardings, values.checkpoint, missing, ()
            )
            values.update(self._where_used(restored, values.mode))
        self.complete(values, step)

    def complete(self, values: RunState, step: Step) -> None:
        """Adds initial values of variables that the model has gained, and moves those
        that it now reads to the devices.
        """
        values.update(self._where_used(self._shardings.moved(values), values.mode))
        missing = {*self._store.without_slots(), *step.reads}.difference(values)
        if missing:
            initial = self._store.initial_values(missing, dict(values))
            values.update(self._put_for(initial, values.mode))

    def to_save(
        self, values: RunState, is_chief: bool, shard_writer: ShardWriter | None
    ) -> ToSave:
        """Returns the values of a checkpoint.

        Raises `ValueError` if a sharded variable must be written by one process, and no
        process has all of its shards.

        Args:
            is_chief: Whether this process writes replicated variables.
            shard_writer: The writer of sharded variables, or `None` if the chief
                writes complete variables.
        """
        saved = [*self._store.saved_paths(), *sorted(values.overridden)]
        values_to_save = {
            path: values[path]
            for path in saved
            if path in values and path != GLOBAL_STEP
        }
        sharded = {
            path: value
            for path, value in values_to_save.items()
            if shard_writer is not None
            and path not in self._store.on_host
            and not value.is_fully_replicated
        }
        if sharded and shard_writer is not None and shard_writer.takes_replicated:
            sharded = values_to_save
        unsharded = {
            p: value for p, value in values_to_save.items() if p not in sharded
        }
        copies = self._own_copies(unsharded)
        check_whole("Checkpoints that one process writes", unsharded, copies)
        return ToSave.from_arrays(self._store, copies if is_chief else {}, sharded)

    def edit(self, values: RunState, assigned: AnyArraysByPath) -> None:
        """Applies the values that user code assigns in a call."""
        cast = {
            path: as_dtype(
                value,
                values[path].dtype,
                f"The value assigned to {path!r}",
            )
            for path, value in assigned.items()
        }
        if values.on_edit is not None:
            values.on_edit(cast)
        values.edit(
            self._put_for(cast, values.mode),
            self._store.constants & assigned.keys(),
        )

    def _loaded(
        self,
        cached: CachedValues,
        step: Step,
        checkpoint: str | None,
        slots: bool = False,
    ) -> RunState:
        """Returns the values that a call begins with, on the cores of its mode."""
        loaded = cached.load(step, checkpoint, slots)
        return RunState(
            self._where_used(loaded, step.mode),
            step.mode,
            cached.source,
            cached.overridden,
        )

    def _lasting(self, values: RunState, trained: Step) -> ArraysByPath:
        """Returns the values that outlive a call: all except metrics."""
        lasting = {
            path: value
            for path, value in usable(values).items()
            if not is_accumulator(self._store.variables[path])
        }
        if trained.is_grouped:
            first = {p: v.addressable_data(0) for p, v in lasting.items()}
            return self._put(first)
        return lasting

    def _is_local(self, mode: str) -> bool:
        """Returns whether a mode needs its own copies of values that span processes."""
        return mode == ModeKeys.PREDICT and self._shardings.need_others

    def _put_for(self, values: AnyArraysByPath, mode: str) -> ArraysByPath:
        """Returns copies of values on the cores of a mode."""
        if self._is_local(mode):
            return self._shardings.in_this_process.put(values)
        return self._where_used(self._put(values), mode)

    def _where_used(self, values: ArraysByPath, mode: str) -> ArraysByPath:
        """Returns values on the cores of a mode. Each process predicts separately."""
        return self._own_copies(values) if mode == ModeKeys.PREDICT else values
