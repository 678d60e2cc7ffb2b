"""The variables of one program, and how they come by their initial values."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.ground.tracing import keras_internals
from keras_tpu_estimator.ground.tracing.capture import Captured, capture
from keras_tpu_estimator.ground.tracing.variable_classes import give
from keras_tpu_estimator.ground.tracing.variables import (
    AnyArraysByPath,
    ArraysByPath,
    is_accumulator,
    is_seed,
)
from keras_tpu_estimator.spec.model_fn.initialization import Target

GLOBAL_STEP = "global_step"
# TensorFlow's name for the number of batches that an evaluation has counted.
EVAL_STEP = "eval_step"


class Lender(Protocol):
    """Who has the values of variables while a loop runs."""

    def show(self) -> None:
        """Gives the variables the loop's current values."""

    def apart(self, keeps: bool) -> contextlib.AbstractContextManager[None]:
        """Lets the variables have arrays of their own in a `with` block.

        Args:
            keeps: Whether what becomes of them counts after the block.
        """


@dataclasses.dataclass(frozen=True)
class SavedVariable:
    """A variable, as checkpoints are compared with it.

    Attributes:
        shape: Its shape.
        trainable: Whether it is trained, and not kept for another one.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    trainable: bool


class VariableStore:
    """Every variable of a program by path.

    A trace enters the variables that it is the first to make; they keep the
    initial values that the trace gave them, computed when they are asked for.

    Args:
        seed: Makes initial values and random layers repeatable. Defaults to
            `None`.

    Attributes:
        variables: The variables by path, `global_step` among them.
        slots: Paths of those that only optimizers use.
        optimizers: The optimizers that use them, by name, as their first
            trace made them.
        target: What `init_from_checkpoint` is about.
        constants: Paths of learning rates that were given as numbers: what
            the code says counts, so they are in no checkpoint.
        saved_dtypes: Dtypes in checkpoints by path, where devices have
            narrower ones.
        inputs: What `model_fn` was given when it was traced last, in words, or
            nothing.
        rows: Numbers of rows by path, of variables whose rows lie over all
            cores. On the devices they may have more.
        valued: Paths of those that `assign` has given values.
        lender: Who gives them their values while a loop runs, or `None`.
    """

    def __init__(self, seed: int | None = None):
        self._seed = seed
        self._taken_names: dict[str, int] = {}
        self._initial: list[Callable[..., ArraysByPath]] = []
        self.slots: set[str] = set()
        self.optimizers: dict[str, keras.optimizers.Optimizer] = {}
        self.constants: set[str] = set()
        self.saved_dtypes: dict[str, np.dtype] = {}
        self.rows: dict[str, int] = {}
        self.valued: set[str] = set()
        self.lender: Lender | None = None
        self.variables: dict[str, keras.Variable] = {
            GLOBAL_STEP: keras.Variable(
                0, dtype="int32", trainable=False, name=GLOBAL_STEP
            )
        }
        self.inputs = ""
        self.target = Target(self.variables, self.constants, sources={})

    def capture(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Captured:
        """Captures a function over these variables, as `variables.capture`."""
        return capture(
            function,
            self.variables,
            *args,
            seed=self._seed,
            taken_names=self._taken_names,
            **kwargs,
        )

    def enter(self, captured: Captured, *args: Any) -> None:
        """Enters the new variables of a trace.

        Args:
            *args: What it was made with. Only what initial values depend on
                is kept, as a copy.
        """
        if not captured.new:
            return
        leaves = jax.tree.leaves(args)
        inputs = {number: _copied(leaves[number]) for number in captured.initial_inputs}
        self.add(
            captured.new,
            functools.partial(captured.initial_values, inputs=inputs),
        )

    def add(
        self,
        variables: Mapping[str, keras.Variable],
        initial: Callable[..., ArraysByPath],
    ) -> None:
        """Adds variables.

        Args:
            initial: Given the paths of variables that want initial values,
                the values of others, and as `places` where they are to be
                made, if that is known, returns those of them that it has. Where
                their rows lie over all cores, they may have more of them.
        """
        self.variables.update(variables)
        self._initial.append(initial)

    def initial_values(
        self,
        paths: Collection[str] | None = None,
        values: AnyArraysByPath | None = None,
        places: Mapping[str, jax.sharding.Sharding] | None = None,
    ) -> ArraysByPath:
        """Initial values, computed anew.

        Args:
            paths: The variables to compute them for. Defaults to all.
            values: Values of others, which they may depend on.
            places: Where each of them is to be made. Defaults to one device.
        """
        paths = set(self.variables if paths is None else paths)
        given = values or {}
        made: ArraysByPath = {
            GLOBAL_STEP: jnp.int32(0),
            **self._from_checkpoints(given),
        }
        for initial in self._initial:
            made = initial(paths, {**made, **given}, places=places) | made
        return {path: made[path] for path in paths}

    def _from_checkpoints(self, values: AnyArraysByPath) -> ArraysByPath:
        """What `init_from_checkpoint` was called for, unless it has values."""
        missing = self.variables.keys() - values.keys()
        read = self.target.values(missing, self.device_dtype)
        return {path: jnp.asarray(value) for path, value in read.items()}

    def assign(self, values: AnyArraysByPath) -> None:
        """Gives variables these values by path."""
        for path, value in values.items():
            give(self.variables[path], value)
        self.valued.update(values)

    def as_saved(self, path: str) -> SavedVariable:
        """What describes a variable, as checkpoints are compared with it."""
        variable = self.variables[path]
        shape, dtype = tuple(variable.shape), self.device_dtype(path)
        return SavedVariable(shape, dtype, variable.trainable)

    def device_dtype(self, path: str) -> np.dtype:
        """The dtype that the devices have of a variable."""
        stored = keras_internals.stored_dtype(self.variables[path])
        return jax.dtypes.canonicalize_dtype(stored)

    def weights(self) -> list[str]:
        """Paths of the variables that other programs may have as well."""
        return [p for p in self.saved_paths() if not is_seed(self.variables[p])]

    def without_slots(self) -> list[str]:
        """Paths of the variables that not only optimizers use."""
        return [path for path in self.variables if path not in self.slots]

    def saved_paths(self) -> list[str]:
        """Paths of the variables that belong into a checkpoint."""
        return [
            path
            for path, variable in self.variables.items()
            if path not in self.constants and not is_accumulator(variable)
        ]


def _copied(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.core.Tracer | jax.ShapeDtypeStruct):
        raise ValueError(
            "The initial value of a variable depends on the input, of which "
            f"only the shape is known yet. Received: {leaf}. Call "
            "`model.prepare(mode, features, labels)` with a batch first."
        )
    return np.array(leaf)
