"""Compiled functions whose steps JAX references only weakly.

JAX stores static arguments in caches that all compiled functions share, until the
process ends. A step holds the graph of its `model_fn`.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import jax

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.engine.program.steps import Step


class JittedLoop:
    """A compiled function of arrays, a step and the names of tensors to fetch.

    Profiles show its `name`.
    """

    def __init__(self, name: str, function: Callable[..., PyTree], **settings: Any):
        @functools.wraps(function)
        def run(
            *args: PyTree, step: weakref.ref[Step], fetch: tuple[str, ...]
        ) -> PyTree:
            return function(*args, step=step(), fetch=fetch)

        run.__name__ = name
        self._function = jax.jit(run, static_argnames=("step", "fetch"), **settings)

    def __call__(self, *args: PyTree, step: Step, fetch: tuple[str, ...]) -> Any:
        """Runs the function."""
        return self._function(*args, step=weakref.ref(step), fetch=fetch)

    def trace(
        self, *args: PyTree, step: Step, fetch: tuple[str, ...]
    ) -> jax.stages.Traced:
        """Traces the function for arguments of these shapes."""
        return self._function.trace(*args, step=weakref.ref(step), fetch=fetch)
