"""The values of a model's variables on the devices, and who has them.

They belong to one object. It hands them over to a call that trains, which may
use their arrays up; lends them to calls that read; shows them to user code
through Keras's variables; and copies them for checkpoints.
"""

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from keras_tpu_estimator.engine.device import fitting
from keras_tpu_estimator.engine.device.kept_values import KeptValues, usable
from keras_tpu_estimator.engine.device.restoring import restored_values
from keras_tpu_estimator.engine.device.run_state import RunState
from keras_tpu_estimator.engine.device.saving import ToSave, check_whole
from keras_tpu_estimator.engine.device.shown_values import ShownValues
from keras_tpu_estimator.engine.device.variable_places import VariablePlaces
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP, VariableStore
from keras_tpu_estimator.files.warm_start.settings import WarmStartSettings
from keras_tpu_estimator.ground.base.dtype_changes import as_dtype
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.tracing.variables import (
    AnyArraysByPath,
    ArraysByPath,
    is_accumulator,
)


class VariableOwner:
    """The one owner of the values of a model's variables.

    Between calls it keeps them, and reads a checkpoint only if that has others.

    Args:
        warm_start: Which variables start from another model's checkpoint as
            long as there is none of this one. Defaults to `None`.

    Attributes:
        shown: Shows them to callbacks.
    """

    def __init__(
        self,
        store: VariableStore,
        places: VariablePlaces,
        warm_start: WarmStartSettings | None = None,
    ):
        self._store = store
        self._places = places
        self._put = places.put
        self._own_copies = places.own_copies
        self._check_places = places.check
        self._warm_start = warm_start
        self._kept = KeptValues(store, places, warm_start)
        self._borrowers = 0
        self.shown = ShownValues(store, places.own_copies, self.edit)

    def check_fits(self, step: Step, checkpoint: str) -> None:
        """Checks that a step can begin with a checkpoint, without its values.

        Args:
            step: The step.
            checkpoint: The prefix of the checkpoint.

        Raises:
            ValueError: The checkpoint lacks a variable, or has it in another
                shape.
        """
        wanted = {*step.reads, *self._store.without_slots()}
        fitting.check_fits(self._store, checkpoint, wanted, step.reads)

    @contextlib.contextmanager
    def handed_over(self, step: Step, checkpoint: str | None) -> Iterator[RunState]:
        """Gives the values away to a call of TRAIN, which uses them up.

        What they have become is kept at the end of the `with` block.

        Args:
            checkpoint: The prefix of the checkpoint to take them from, or
                `None` for initial values.

        Raises:
            ValueError: The checkpoint lacks a variable, or has it in another
                shape.
        """
        self._check_places()
        values = self._loaded(self._kept, step, checkpoint)
        self._kept.keep({}, None)
        if self._borrowers:
            values.update(jax.tree.map(jnp.copy, dict(values)))
        try:
            yield values
        finally:
            lasting = self._lasting(values, step)
            self._kept.keep(lasting, values.source, values.overridden)
            self.shown.assign(lasting)

    @contextlib.contextmanager
    def lent(
        self, step: Step, checkpoint: str | None, slots: bool = False
    ) -> Iterator[RunState]:
        """Lends the values to a call of EVAL or PREDICT.

        Nothing uses their arrays up before the end of the `with` block.

        Args:
            checkpoint: As in `handed_over`.
            slots: Whether to load the optimizers' variables, too. Defaults to
                `False`.

        Raises:
            ValueError: As there.
        """
        kept = self._kept
        # Initial values are made by all hosts together, too.
        is_new = checkpoint is None and self._places.are_on_hosts
        if self._is_alone(step.mode) or (is_new and step.mode == ModeKeys.PREDICT):
            kept = KeptValues(self._store, self._places.own, self._warm_start)
        values = self._loaded(kept, step, checkpoint, slots)
        self._borrowers += 1
        try:
            yield values
        finally:
            self._borrowers -= 1

    def of_training(self, step: Step, training: RunState, trained: Step) -> RunState:
        """The values that a call of TRAIN has now, for one of EVAL inside it.

        Args:
            step: The step of EVAL.
            training: The values of the call of TRAIN.
            trained: The step of TRAIN.
        """
        self.complete(training, step)
        values = RunState(self._lasting(training, trained), step.mode, training.source)
        self.complete(values, step)
        values.update(self._kept.replaced(step, training, checkpoint=None))
        return values

    def take_up(self, values: RunState, step: Step) -> None:
        """Adds the variables that hooks made, as the checkpoint has them."""
        if step.graph is None or not step.graph.enter_new(self._store):
            return
        missing = {*self._store.without_slots()}.difference(values)
        if values.checkpoint is not None:
            restored = restored_values(
                self._store, self._places, values.checkpoint, missing, ()
            )
            values.update(self._where_used(restored, values.mode))
        self.complete(values, step)

    def complete(self, values: RunState, step: Step) -> None:
        """Adds initial values of what the model has come to have since."""
        missing = {*self._store.without_slots(), *step.reads}.difference(values)
        if missing:
            initial = self._store.initial_values(missing, dict(values))
            values.update(self._put_for(initial, values.mode))

    def to_save(
        self, values: RunState, in_parts: bool, is_chief: bool, as_tree: bool
    ) -> ToSave:
        """What belongs into a checkpoint.

        Args:
            in_parts: Whether each host writes the parts that it has of what
                lies over several cores.
            is_chief: Whether this host writes the rest.
            as_tree: Whether the rest is written together with such parts.

        Raises:
            ValueError: They are to be written whole, and no host has them.
        """
        saved = [*self._store.saved_paths(), *sorted(values.overridden)]
        wanted = {
            path: values[path]
            for path in saved
            if path in values and path != GLOBAL_STEP
        }
        sharded = {
            path: value
            for path, value in wanted.items()
            if in_parts and not value.is_fully_replicated
        }
        if sharded and as_tree:
            return ToSave.together(self._store, wanted)
        whole = {p: value for p, value in wanted.items() if p not in sharded}
        own = self._own_copies(whole)
        check_whole("Checkpoints in the format of TensorFlow", whole, own)
        return ToSave.of(self._store, own if is_chief else {}, sharded)

    def edit(self, values: RunState, assigned: AnyArraysByPath) -> None:
        """Takes what user code assigns to variables in a call."""
        cast = {
            path: as_dtype(
                value,
                values[path].dtype,
                f"The value that is assigned to {path!r}",
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
        kept: KeptValues,
        step: Step,
        checkpoint: str | None,
        slots: bool = False,
    ) -> RunState:
        """The values that a call begins with, where its mode uses them."""
        loaded = kept.load(step, checkpoint, slots)
        return RunState(
            self._where_used(loaded, step.mode),
            step.mode,
            kept.source,
            kept.overridden,
        )

    def _lasting(self, values: RunState, trained: Step) -> ArraysByPath:
        """What outlives a call: not metrics, which count anew in each."""
        lasting = {
            path: value
            for path, value in usable(values).items()
            if not is_accumulator(self._store.variables[path])
        }
        if trained.is_grouped:
            first = {p: v.addressable_data(0) for p, v in lasting.items()}
            return self._put(first)
        return lasting

    def _is_alone(self, mode: str) -> bool:
        """Whether a mode has values that only all hosts together have."""
        return mode == ModeKeys.PREDICT and self._places.need_others

    def _put_for(self, values: AnyArraysByPath, mode: str) -> ArraysByPath:
        """Copies values to the cores of a mode."""
        if self._is_alone(mode):
            return self._places.own.put(values)
        return self._where_used(self._put(values), mode)

    def _where_used(self, values: ArraysByPath, mode: str) -> ArraysByPath:
        """The values on the cores of a mode: each host predicts by itself."""
        return self._own_copies(values) if mode == ModeKeys.PREDICT else values
