"""Calling a `host_call` once for each step, with the number of that step."""

from collections.abc import Sequence

import jax
import numpy as np

from keras_tpu_estimator.base.types import Nest
from keras_tpu_estimator.model_fn.spec_checks import HostFunction
from keras_tpu_estimator.summary import recording


def call_for_steps(
    host_call: HostFunction,
    tensors: Nest,
    numbers: Sequence[int],
    every: int = 1,
) -> None:
    """Calls a `host_call`; its summaries have the number as their step.

    Args:
        host_call: The function.
        tensors: Its tensors, stacked: `[steps, ...]`.
        numbers: The global step of each, in which the first step is 1; in
            evaluation they are all the same.
        every: It is called for step 1 and then every so many. Defaults to 1.
    """
    leaves, structure = jax.tree.flatten(tensors)
    steps = zip(numbers, *map(np.asarray, leaves), strict=True)
    with recording.host_calls():
        for number, *rows in steps:
            if (number - 1) % every == 0:
                recording.set_step(number)
                host_call.call(jax.tree.unflatten(structure, rows))
