"""Compiled functions in the place of which stored executables are run."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from keras_tpu_estimator.engine.device.executable_key import ExecutableKey
from keras_tpu_estimator.engine.device.executables import Executables
from keras_tpu_estimator.engine.device.nan_search import Compiled
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.tracing import jaxprs


class StoredLoop:
    """A compiled function that is not compiled where it was stored.

    It takes and returns what the function does. What is stored was lowered of
    shapes, so this is, too: of arrays themselves, JAX writes another program
    of the same meaning.

    Args:
        function: A jitted function of arrays, the last of which are the
            batches, and of `step` and `fetch`.
        shapes_of: Gives shapes and places of all the arrays for a step and
            its batches.
        devices_of: Gives the devices of a step, in their order.
    """

    def __init__(
        self,
        function: Compiled,
        shapes_of: Callable[[Step, Nest], tuple[Nest, ...]],
        devices_of: Callable[[Step], tuple[jax.Device, ...]],
        executables: Executables,
    ):
        self._function = function
        self._shapes_of = shapes_of
        self._devices_of = devices_of
        self._executables = executables
        self._made: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Nest, step: Step, fetch: tuple[str, ...]) -> Any:
        """Runs what is stored, or else is compiled, for arrays like these."""
        leaves, structure = jax.tree.flatten(args[-1])
        sizes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        key = step, fetch, structure, sizes
        if key not in self._made:
            self._made[key] = self._of(args[-1], step, fetch)
        return self._made[key](*args)

    def trace(self, *args: Nest, **static: Any) -> jax.stages.Traced:
        """Traces the function, whatever is stored."""
        return self._function.trace(*args, **static)

    def _of(
        self, batches: Nest, step: Step, fetch: tuple[str, ...]
    ) -> Callable[..., Any]:
        static = {"step": step, "fetch": fetch}
        traced = self.trace(*self._shapes_of(step, batches), **static)
        if not is_storable(traced):
            return functools.partial(self._function, **static)
        lowered, devices = traced.lower(), self._devices_of(step)
        key = ExecutableKey.of(step.mode, lowered, devices)
        stored = self._executables.load(key, lowered, devices)
        return stored or lowered.compile()


def is_storable(traced: jax.stages.Traced) -> bool:
    """Whether a program is the same in another process.

    Example:

    >>> from keras_tpu_estimator.engine.device.stored_loops import is_storable
    >>> is_storable(jax.jit(abs).trace(1.0))
    True
    """
    # What calls Python has the address of a function.
    return not jaxprs.callbacks(traced.jaxpr)
