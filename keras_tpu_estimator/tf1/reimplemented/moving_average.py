"""The optimizer of `tf.contrib.opt` that averages what it trains."""

from collections.abc import Iterable
from typing import Any

import tensorflow.compat.v1 as tf


class MovingAverageOptimizer(tf.train.Optimizer):
    """An optimizer that averages what it trains.

    Args:
        opt: The optimizer.
        average_decay: Of the average. Defaults to 0.9999.
        num_updates: The number of steps, to begin with a faster decay.
            Defaults to none.
        sequential_update: Whether averages come after the step. Always so.
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
        """Those of the optimizer."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Makes a step of the optimizer, and then the averages."""
        pairs = list(grads_and_vars)
        step = self._opt.apply_gradients(pairs, global_step, name)
        self._averaged = [variable for _, variable in pairs]
        with tf.control_dependencies([step]):
            return tf.group(self._average.apply(self._averaged))

    def swapping_saver(
        self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any
    ) -> Any:
        """A saver that writes averages under the names of the variables.

        Args:
            var_list: What is saved, as `tf.train.Saver` takes it. Defaults to
                all global variables.
            name: Of the saver's operations.
            **kwargs: For `tf.train.Saver`.

        Raises:
            RuntimeError: There are no averages before `apply_gradients`.
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
