"""The variables of one program, and their initial values."""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import keras
import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.base.tracing.variable_classes import (
    SlotVariable,
    store_value,
    without_value,
)
from keras_tpu_estimator.base.tracing.variables import (
    AnyArraysByPath,
    ArraysByPath,
    is_accumulator,
    is_seed,
)
from keras_tpu_estimator.base.upstream import keras_variables
from keras_tpu_estimator.files.warm_start.pairing import Target

GLOBAL_STEP = "global_step"
# TensorFlow's name for the number of evaluated batches.
EVAL_STEP = "eval_step"


class ValueHolder(Protocol):
    """The holder of the variables' values while a loop runs."""

    def show(self) -> None:
        """Assigns the loop's current values to the variables."""

    def separate_arrays(self, keeps: bool) -> contextlib.AbstractContextManager[None]:
        """Gives the variables separate arrays, and `keeps` their last values."""


@dataclasses.dataclass(frozen=True)
class SavedVariable:
    """The properties of a variable that are compared with checkpoints.

    An optimizer's state is not `trainable`.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    trainable: bool


class VariableStore:
    """Every variable of a program by path.

    Each trace adds the variables that it makes first. Their initial values come from
    that trace, and are computed on request.

    Attributes:
        seed: The seed of initial values, or `None`.
        taken_names: The numbers of automatic names that traces must not use.
        slots: Paths of the optimizer state.
        optimizers: The optimizers by name, as their first trace made them.
        target: The variables that `init_from_checkpoint` may set.
        constants: Paths of learning rates that the code sets as numbers.
            Checkpoints do not contain them.
        saved_dtypes: Dtypes in checkpoints by path, where devices have
            narrower ones.
        on_host: Paths of the variables that no step has read, and that devices
            cannot hold in their dtypes. Their values are NumPy arrays.
        inputs: A description of the inputs of the last trace of `model_fn`.
        rows: Numbers of rows by path, of variables whose rows are sharded over
            all cores. On the devices they may have more.
        valued: Paths of the variables that `assign` has set.
        holder: The holder of the values while a loop runs, or `None`.
        warned: The program's warnings so far, as in Python's `warnings`.
    """

    def __init__(self, seed: int | None = None):
        self.seed = seed
        self.taken_names: dict[str, int] = {}
        self._initial: list[Callable[..., ArraysByPath]] = []
        self.slots: set[str] = set()
        self.optimizers: dict[str, keras.optimizers.Optimizer] = {}
        self.constants: set[str] = set()
        self.saved_dtypes: dict[str, np.dtype] = {}
        self.on_host: set[str] = set()
        self.rows: dict[str, int] = {}
        self.valued: set[str] = set()
        self.holder: ValueHolder | None = None
        self.warned: dict[Any, Any] = {}
        self.variables: dict[str, keras.Variable] = {
            GLOBAL_STEP: keras.Variable(
                0, dtype="int32", trainable=False, name=GLOBAL_STEP
            )
        }
        self.inputs = ""
        self.target = Target(self.variables, self.constants, sources={})

    def add(
        self,
        variables: Mapping[str, keras.Variable],
        initial: Callable[..., ArraysByPath],
    ) -> None:
        """Adds variables with a function that returns initial values by path.

        It receives the wanted paths, of which it ignores unknown ones, the values of
        other variables and, as `shardings`, the shardings if they are known. Variables
        with rows over all cores may get more rows.
        """
        self.variables.update(variables)
        self._initial.append(initial)

    def add_arrays(
        self, arrays: Mapping[str, npt.ArrayLike], trainable: bool = True
    ) -> None:
        """Adds variables by path, whose initial values are arrays.

        A path that already has a variable must have the same shape, and keeps its
        initial value. Floats and integers get the dtypes of JAX arrays.

        Args:
            arrays: The initial values by path.
            trainable: Whether these are weights, and not state. Defaults to `True`.

        Raises:
            ValueError: An array has another shape than the variable at its path.
        """
        values = {path: np.asarray(array) for path, array in arrays.items()}
        for path, value in values.items():
            shape = tuple(self.variables.get(path, value).shape)
            if shape != value.shape:
                raise ValueError(
                    f"The variable {path!r} must have the shape {shape} in all modes. "
                    f"Received an array of shape {value.shape}. Use another path."
                )
        new = {
            path: without_value(
                path,
                shape=value.shape,
                dtype=jax.dtypes.canonicalize_dtype(value.dtype).name,
                trainable=trainable,
            )
            for path, value in values.items()
            if path not in self.variables
        }
        # Steps donate their arguments, so each call needs new arrays.
        self.add(
            new, lambda paths, known, shardings: {p: jnp.array(values[p]) for p in new}
        )

    def initial_values(
        self,
        paths: Collection[str] | None = None,
        values: AnyArraysByPath | None = None,
        shardings: Mapping[str, jax.sharding.Sharding] | None = None,
    ) -> ArraysByPath:
        """Computes initial values, which may use current `values` of others."""
        paths = set(self.variables if paths is None else paths)
        current = values or {}
        computed: ArraysByPath = {
            GLOBAL_STEP: jnp.int32(0),
            **self._from_checkpoints(current),
        }
        for initial in self._initial:
            available = {**computed, **current}
            computed = initial(paths, available, shardings=shardings) | computed
        return {path: computed[path] for path in paths}

    def _from_checkpoints(self, values: AnyArraysByPath) -> ArraysByPath:
        """Returns values from `init_from_checkpoint`, for variables without values."""
        missing = self.variables.keys() - values.keys()
        read = self.target.values(missing, self.device_dtype)
        return {path: jnp.asarray(value) for path, value in read.items()}

    def assign(self, values: AnyArraysByPath) -> None:
        """Assigns values to variables by path."""
        # A Keras variable has the dtype of the devices.
        shown = {p: value for p, value in values.items() if p not in self.on_host}
        for path, value in shown.items():
            store_value(self.variables[path], value)
        self.valued.update(shown)

    def as_saved(self, path: str) -> SavedVariable:
        """Returns the properties of a variable that are compared with checkpoints."""
        variable = self.variables[path]
        shape, dtype = tuple(variable.shape), self.device_dtype(path)
        return SavedVariable(shape, dtype, variable.trainable)

    def device_dtype(self, path: str) -> np.dtype:
        """Returns the dtype of a variable's value, which is on the devices or here."""
        if path in self.on_host:
            return self.saved_dtypes[path]
        stored = keras_variables.stored_dtype(self.variables[path])
        return jax.dtypes.canonicalize_dtype(stored)

    def weights(self) -> list[str]:
        """Returns the paths of variables that another program may also have."""
        return [p for p in self.saved_paths() if not is_seed(self.variables[p])]

    def without_slots(self) -> list[str]:
        """Returns the paths of all variables except optimizer state."""
        # Copied, because a trace on another thread may add variables.
        return [path for path in [*self.variables] if path not in self.slots]

    def saved_paths(self) -> list[str]:
        """Returns the paths of the variables that checkpoints contain."""
        return [
            path
            # Copied, because a trace on another thread may add variables.
            for path, variable in [*self.variables.items()]
            if path not in self.constants and not is_accumulator(variable)
        ]

    def restorable(self) -> set[str]:
        """Returns the paths of the variables that a checkpoint may contain."""
        # A callback may have set a learning rate that the code sets as a number.
        return {*self.saved_paths(), *self.constants}


def slot_owners(variables: Mapping[str, keras.Variable]) -> dict[str, str]:
    """Returns the path of the variable that each optimizer state belongs to.

    Optax's state has an owner. Other state has the shape of its variable and is named
    after it: `adam/dense_kernel_momentum` in Keras, `dense/kernel/Adam` in TensorFlow.
    """
    by_name: dict[str, str] = {}
    for path in variables:
        by_name[path] = by_name[path.replace("/", "_")] = path
    owners = {}
    for path, variable in variables.items():
        if isinstance(variable, SlotVariable):
            if variable.owner is not None:
                owners[path] = variable.owner
            continue
        for name in _prefixes(path):
            owner = by_name.get(name)
            if owner not in (None, path) and (variables[owner].shape == variable.shape):
                owners[path] = owner
                break
    return owners


def _prefixes(path: str) -> list[str]:
    """Returns the paths that a slot may be named after, the longest first."""
    folder, _, last = path.rpartition("/")
    words = last.split("_")
    keras_names = ["_".join(words[:n]) for n in range(len(words) - 1, 0, -1)]
    parts = folder.split("/")
    folder_names = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return [*folder_names, *keras_names]
