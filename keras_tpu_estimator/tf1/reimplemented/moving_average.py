"""The averaging optimizer of `tf.contrib.opt`."""

from collections.abc import Iterable
from typing import Any

import tensorflow.compat.v1 as tf


class MovingAverageOptimizer(tf.train.Optimizer):
    """An optimizer that averages the variables that it trains.

    Args:
        opt: The optimizer.
        average_decay: The decay of the averages. Defaults to 0.9999.
        num_updates: The number of steps, for a faster decay at the start. Defaults to
            none.
        sequential_update: Accepted; averages always follow the step.
    """

    def __init__(
        self,
        opt: Any,
        average_decay: Any = 0.9999,
        num_updates: Any = None,
        sequential_update: bool = True,
    ):
        del sequential_update
        super().__init__(False, "MovingAverageOptimizer")
        self._opt = opt
        self._average = tf.train.ExponentialMovingAverage(average_decay, num_updates)
        self._averaged: list[Any] = []

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the gradients of the optimizer."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Runs a step of the optimizer, and then updates the averages."""
        pairs = list(grads_and_vars)
        step = self._opt.apply_gradients(pairs, global_step, name)
        self._averaged = [variable for _, variable in pairs]
        with tf.control_dependencies([step]):
            return tf.group(self._average.apply(self._averaged))

    def swapping_saver(
        self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any
    ) -> Any:
        """Returns a saver that writes averages under the names of the variables.

        Args:
            var_list: The variables to save, as in `tf.train.Saver`. Defaults to all
                global variables.
            name: The name of the saver's operations.
            **kwargs: Arguments of `tf.train.Saver`.

        Raises:
            RuntimeError: `apply_gradients` was not called before.
        """
        if not self._averaged:
            raise RuntimeError(
                "Call `apply_gradients` or `minimize` before `swapping_saver`. "
                "Received an optimizer that has no averages yet."
            )
        chosen = tf.global_variables() if var_list is None else var_list
        names = (
            dict(chosen)
            if isinstance(chosen, dict)
            else {variable.op.name: variable for variable in chosen}
        )
        key_of = {variable.name: key for key, variable in names.items()}
        for variable in self._averaged:
            average = self._average.average(variable)
            names[key_of[variable.name]] = average
            names[key_of[average.name]] = variable
        return tf.train.Saver(names, name=name, **kwargs)
