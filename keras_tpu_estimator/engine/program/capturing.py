"""Captures of traced functions over the variables of a program."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.base.tracing.capture import Captured, capture
from keras_tpu_estimator.engine.program.store import VariableStore


def capture_over(
    store: VariableStore, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Captured:
    """Captures a function over a store's variables, as `capture.capture` does."""
    return capture(
        function,
        store.variables,
        *args,
        seed=store.seed,
        taken_names=store.taken_names,
        **kwargs,
    )


def enter(store: VariableStore, captured: Captured, *args: Any) -> None:
    """Adds a trace's new variables, with copies of inputs for initial values."""
    if not captured.new:
        return
    leaves = jax.tree.leaves(args)
    inputs = {number: _copied(leaves[number]) for number in captured.initial_inputs}
    store.add(
        captured.new,
        functools.partial(captured.initial_values, inputs=inputs),
    )


def _copied(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.core.Tracer | jax.ShapeDtypeStruct):
        raise ValueError(
            "The initial value of a variable must not depend on the input while "
            f"only the shape of the input is known. Received: {leaf}. Call "
            "`model.prepare(mode, features, labels)` with a batch first."
        )
    return np.array(leaf)
