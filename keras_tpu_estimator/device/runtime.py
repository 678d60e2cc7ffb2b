"""What outlives a call: the compiled program, and the values in memory."""

import logging
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.checkpoints.warm_start import warm_start_values
from keras_tpu_estimator.checkpoints.warm_start_settings import (
    WarmStartSettings,
)
from keras_tpu_estimator.device.device_loop import DeviceLoop
from keras_tpu_estimator.device.estimator_model import EstimatorModel
from keras_tpu_estimator.model_fn.scaffold import InitSession
from keras_tpu_estimator.model_fn.scaffold import Scaffold
from keras_tpu_estimator.model_fn.scaffold import without_tensors
from keras_tpu_estimator.program.steps import Step
from keras_tpu_estimator.program.store import GLOBAL_STEP
from keras_tpu_estimator.program.store import Values
from keras_tpu_estimator.storage import paths

_logger = logging.getLogger("keras_tpu_estimator")
_INITIAL = ("initial values",)


class Runtime:
    """A model, its compiled loops, and the variables' values on the devices.

    Values are read from a checkpoint only if they are not those in memory.

    Args:
        model: The model.
        debug_nans: As in `DeviceLoop`. Defaults to `False`.
        warm_start: Which variables start from another model's checkpoint as
            long as there is none of this one. Defaults to `None`.
    """

    def __init__(
        self,
        model: EstimatorModel,
        debug_nans: bool = False,
        warm_start: WarmStartSettings | None = None,
    ):
        self.model = model
        self.loop = DeviceLoop(model, debug_nans)
        self._values: Values = {}
        self._source: tuple[Any, ...] | None = None
        self._warm_start = warm_start
        self._initialized: set[int] = set()
        self._readers = 0
        # Constants that a callback has set: state, from then on.
        self._overridden: set[str] = set()

    def load(
        self, step: Step, checkpoint: str | None, slots: bool = False
    ) -> Values:
        """The values that a step reads.

        Args:
            step: The step.
            checkpoint: The prefix of the checkpoint to take them from, or
                `None` for initial values.
            slots: Whether to load the optimizers' variables, too. Defaults to
                `False`.

        Returns:
            Values by path, on the devices.

        Raises:
            ValueError: The checkpoint lacks a variable, or has it in another
                shape.
        """
        source = _INITIAL if checkpoint is None else _identity(checkpoint)
        if source != self._source:
            self._values, self._source = {}, source
            self._initialized.clear()
            self._overridden.clear()
        self._values = _without_used_up(self._values)
        wanted = {*step.reads, *self.model.paths()}
        if slots:
            wanted |= self.model.program.store.slots
        wanted -= self._values.keys()
        if wanted:
            self._read(wanted, step.reads, checkpoint)
        if checkpoint is None:
            self._initialize(step)
            return self._values
        return self.in_place(self._values, step.scaffold, checkpoint)

    def complete(self, values: Values, paths: Iterable[str] = ()) -> Values:
        """Values of a training loop, with those that the model has besides.

        Args:
            values: The loop's values by path.
            paths: Paths that are wanted, too. Defaults to none.

        Returns:
            The same values, and initial values of the variables that the model
            has come to have since, or that are wanted.
        """
        missing = {*self.model.paths(), *paths} - values.keys()
        if not missing:
            return values
        initial = self.model.program.store.initial_values(missing, values)
        return values | self.loop.put_values(initial)

    def in_place(
        self, values: Values, scaffold: Scaffold, checkpoint: str | None = None
    ) -> Values:
        """Values with those that a scaffold wants in place of others.

        Args:
            values: Values by path.
            scaffold: Says what is restored from which name.
            checkpoint: Where names are read that are not among the values.
                Defaults to `None`, for nowhere.

        Raises:
            ValueError: There is no such variable, or nothing of that name.
        """
        sources, store = scaffold.sources, self.model.program.store
        unknown = sources.keys() - store.variables.keys()
        if unknown:
            raise ValueError(
                "`variables_to_restore` should be about variables of the "
                f"model. Received others: {sorted(unknown)}. The model has "
                f"{sorted(store.variables)}."
            )
        missing = set(sources.values()) - values.keys()
        read: Values = {}
        if missing and checkpoint is not None:
            read = _read_checked(checkpoint, missing, store.variables)
            read = self.loop.put_values(read)
        elif missing:
            raise ValueError(
                "`variables_to_restore` names what training does not have: "
                f"{sorted(missing)}. It has {sorted(values)}."
            )
        known = values | read
        for path, name in sources.items():
            expected = tuple(store.variables[path].shape)
            if expected != tuple(known[name].shape):
                raise ValueError(
                    f"`variables_to_restore` should give {path!r} values of "
                    f"shape {expected}. Received {name!r} of shape "
                    f"{tuple(known[name].shape)}. Map it to a variable of its "
                    "own shape, such as its moving average."
                )
        return values | {path: known[name] for path, name in sources.items()}

    def reading(self, values: Values) -> "Reading":
        """Keeps values usable for the time of a `with` block."""
        return Reading(self, values)

    def take(self) -> Values:
        """Gives the values away, for a loop that uses them up."""
        values = self._values
        self._values, self._source = {}, None
        if self._readers:
            return jax.tree.map(jnp.copy, values)
        return values

    def give_back(self, values: Values, checkpoint: str | None) -> None:
        """Takes new values, and the checkpoint that holds the same ones."""
        self._values = values
        self._source = None if checkpoint is None else _identity(checkpoint)
        self.model.assign(values)

    def override(self, paths: Iterable[str]) -> None:
        """Tells that variables have been set by something but training."""
        constants = self.model.program.store.constants
        self._overridden |= constants.intersection(paths)

    def trained_paths(self) -> set[str]:
        """The paths of trainable variables."""
        variables = self.model.program.store.variables
        return {path for path, each in variables.items() if each.trainable}

    def to_save(self, values: Values) -> dict[str, np.ndarray]:
        """The values that belong into a checkpoint, copied to the host."""
        paths = self.model.program.store.saved_paths()
        paths += sorted(self._overridden)
        known = values.keys() - {GLOBAL_STEP}
        return _on_host({p: values[p] for p in paths if p in known})

    def _initialize(self, step: Step) -> None:
        """Has a scaffold set initial values, once for each step."""
        init_fn = step.scaffold.init_fn
        if init_fn is None or id(step) in self._initialized:
            return
        session = InitSession(self._values)
        with without_tensors("init_fn"):
            init_fn(step.scaffold, session)
        self._values = self._values | self.loop.put_values(session.assigned)
        self._initialized.add(id(step))

    def _read(
        self, wanted: set[str], required: Iterable[str], checkpoint: str | None
    ) -> None:
        store = self.model.program.store
        read: Values = {}
        if checkpoint is not None:
            _logger.info("Restoring parameters from %s", checkpoint)
            saved = wanted & set(store.saved_paths())
            there = set(checkpoints.names(checkpoint))
            # What the model has for other modes need not be there.
            paths = saved & ({*required} | there)
            # A learning rate is there only if a callback has set it.
            self._overridden |= wanted & there & store.constants
            paths |= wanted & self._overridden
            read = _read_checked(checkpoint, paths, store.variables)
        rest = wanted - read.keys()
        if rest:
            known = self._values | read
            if checkpoint is None and self._warm_start is not None:
                known |= self._warm_values(rest)
            read |= store.initial_values(rest, known)
        self._values = self._values | self.loop.put_values(read)

    def _warm_values(self, wanted: set[str]) -> Values:
        """Values from the checkpoint of another model."""
        store = self.model.program.store
        weights = {p: store.variables[p] for p in store.weights()}
        values, report = warm_start_values(self._warm_start, weights)
        _logger.info("%s", report)
        return {p: value for p, value in values.items() if p in wanted}


class Reading:
    """Marks values as in use, so that no training loop uses them up."""

    def __init__(self, runtime: Runtime, values: Values):
        self._runtime = runtime
        self._values = dict(values)

    def __enter__(self) -> Values:
        self._runtime._readers += 1
        return self._values

    def __exit__(self, *exception: Any) -> None:
        self._runtime._readers -= 1


def _read_checked(
    checkpoint: str, paths: Iterable[str], variables: Any
) -> Values:
    try:
        values = checkpoints.read(checkpoint, sorted(paths))
    except checkpoints.VariableNotFoundError as error:
        raise ValueError(
            f"The checkpoint {checkpoint!r} does not fit the model: {error} "
            "Restore the layer's name, or start in another model_dir."
        ) from error
    for path, value in values.items():
        if path in variables and tuple(variables[path].shape) != value.shape:
            raise ValueError(
                f"The variable {path!r} has shape "
                f"{tuple(variables[path].shape)} in model_fn, but "
                f"{value.shape} in the checkpoint {checkpoint!r}. Restore the "
                "layer's size, or start in another model_dir."
            )
    if GLOBAL_STEP in values:
        values[GLOBAL_STEP] = values[GLOBAL_STEP].astype(np.int32)
    return values


def _without_used_up(values: Values) -> Values:
    """Values but for those that Keras donated, in `fit` of a shared layer."""
    return {
        path: value
        for path, value in values.items()
        if not (isinstance(value, jax.Array) and value.is_deleted())
    }


def _on_host(values: Values) -> dict[str, np.ndarray]:
    """Copies of values, which training may use up in the meantime."""
    fetched = jax.device_get(values)
    return {
        # What the CPU gives is the buffer itself.
        path: np.array(fetched[path]) if _is_on_cpu(value) else fetched[path]
        for path, value in values.items()
    }


def _is_on_cpu(value: Any) -> bool:
    if not isinstance(value, jax.Array):
        return True
    return any(device.platform == "cpu" for device in value.devices())


def _identity(checkpoint: str) -> tuple[Any, ...]:
    return paths.version(checkpoint + ".h5")
