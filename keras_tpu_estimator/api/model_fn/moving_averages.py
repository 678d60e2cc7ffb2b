"""Moving averages of variables."""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import keras
from keras import ops

from keras_tpu_estimator.api.model_fn.known_variables import (
    tables,
    trainable_variables,
)
from keras_tpu_estimator.api.model_fn.update import Update
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.tracing.variables import VariableScope, scope_for


@dataclasses.dataclass(frozen=True)
class AverageOp(Update):
    """An update of moving averages, executed after `model_fn`.

    Attributes:
        variables: The averaged variables.
        averages: The average of each variable.
        decay: Scalar tensor, the share of an average that is kept.
    """

    variables: tuple[keras.Variable, ...]
    averages: tuple[keras.Variable, ...]
    decay: Any

    @property
    def carried(self) -> tuple[Any, ...]:
        """The decay, an input of `apply`."""
        return (self.decay,)

    def apply(self, tensors: Sequence[Any]) -> Mapping[str, Any]:
        """Moves the averages towards the variables."""
        (decay,) = tensors
        for variable, average in zip(self.variables, self.averages, strict=True):
            rate = ops.cast(1 - decay, average.dtype)
            average.assign(average - rate * (average - variable))
        return {}


class ExponentialMovingAverage:
    """Moving averages of variables, for evaluation.

    The counterpart of `tf.train.ExponentialMovingAverage`. In training, `apply`
    updates the averages, which are separate variables in checkpoints. In
    evaluation and prediction, `variables_to_restore` loads them into the
    variables.

    Args:
        decay: The share of an average that each step keeps, between 0 and 1.
        num_updates: Number of updates so far, such as `get_global_step()`; the
            decay is at most `(1 + num_updates) / (10 + num_updates)`. Defaults
            to `None`.
        name: The last part of the averages' paths. Defaults to
            "ExponentialMovingAverage".

    Raises:
        ValueError: `decay` is not between 0 and 1.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import keras, numpy as np
    >>> def model_fn(features, labels, mode, params):
    ...     y = keras.layers.Dense(1, use_bias=False)(features)
    ...     loss = keras.ops.mean((y - labels) ** 2)
    ...     averages = kte.ExponentialMovingAverage(0.99)
    ...     if mode == kte.ModeKeys.TRAIN:
    ...         optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    ...         train_op = [optimizer.minimize(loss), averages.apply()]
    ...         return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
    ...     names = averages.variables_to_restore()
    ...     return kte.TPUEstimatorSpec(
    ...         mode, loss=loss, scaffold_fn=lambda: kte.Scaffold(
    ...             variables_to_restore=names))
    """

    def __init__(
        self,
        decay: float,
        num_updates: Any = None,
        name: str = "ExponentialMovingAverage",
    ):
        if not 0 <= decay <= 1:
            raise ValueError(
                "`decay` must be a number between 0 and 1, such as 0.999. "
                f"Received: {shown(decay)}"
            )
        self.decay = decay
        self.num_updates = num_updates
        self.name = name

    def apply(self, var_list: Iterable[keras.Variable] | None = None) -> AverageOp:
        """Returns an op that updates averages, for the end of a `train_op`.

        Args:
            var_list: The variables to average. Defaults to all trainable ones,
                which do not include embedding tables of
                `embedding_config_spec`; a warning names those.

        Returns:
            An `AverageOp`. Ops of a sequence are executed in order, so put it
            after the optimizer's: `train_op=[optimizer.minimize(loss),
            averages.apply()]`.

        Raises:
            TypeError: A variable contains integers or booleans.
            ValueError: The call is outside a `model_fn`.
        """
        if var_list is None:
            _warn_of_tables()
        variables = self._variables(var_list)
        _check_averageable(variables)
        averages = tuple(self.average(variable) for variable in variables)
        decay = ops.convert_to_tensor(self.decay, "float32")
        if self.num_updates is not None:
            updates = ops.cast(self.num_updates, "float32")
            decay = ops.minimum(decay, (1 + updates) / (10 + updates))
        return AverageOp(variables, averages, decay)

    def average(self, var: keras.Variable) -> keras.Variable:
        """Returns the variable that contains the average of another one."""
        scope = scope_for("ExponentialMovingAverage.average")
        path = self.average_name(var)
        if path not in scope.objects:
            _create(scope, path, var)
        return scope.objects[path]

    def average_name(self, var: keras.Variable) -> str:
        """Returns the path of the variable that contains an average."""
        return f"{var.path}/{self.name}"

    def variables_to_restore(
        self, moving_avg_variables: Iterable[keras.Variable] | None = None
    ) -> dict[str, keras.Variable]:
        """Returns the variables by the names of their averages.

        Args:
            moving_avg_variables: The averaged variables. Defaults to all
                trainable ones.

        Returns:
            The argument of `Scaffold(variables_to_restore=...)`.
        """
        variables = self._variables(moving_avg_variables)
        return {self.average_name(variable): variable for variable in variables}

    def _variables(
        self, variables: Iterable[keras.Variable] | None
    ) -> tuple[keras.Variable, ...]:
        return tuple(trainable_variables() if variables is None else variables)


def _check_averageable(variables: Iterable[keras.Variable]) -> None:
    """Checks that averages of variables are not rounded to integers."""
    for variable in variables:
        if not jnp.issubdtype(variable.dtype, jnp.inexact):
            raise TypeError(
                "`var_list` must contain floating-point variables, because "
                "the average of integers is not an integer. Received: "
                f"{variable.path!r} of dtype {variable.dtype}. Leave it out, "
                "or give the variable a floating-point dtype."
            )


def _warn_of_tables() -> None:
    """Warns about embedding tables, of which a step only has the used rows."""
    left_out = tables()
    if left_out:
        warnings.warn(
            "Moving averages contain only model_fn's own variables: the "
            f"embedding tables {left_out} are not averaged, and evaluation "
            "uses their current values. Pass `kte.trainable_variables()` to "
            "`apply` to silence this warning, or create the tables with "
            "keras.layers.Embedding in model_fn.",
            UserWarning,
            stacklevel=3,
        )


def _create(scope: VariableScope, path: str, var: keras.Variable) -> None:
    """Creates the variable of an average, with the variable's initial value."""
    before = scope.value_before(var)
    *parents, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for parent in parents:
            stack.enter_context(keras.name_scope(parent))
        keras.Variable(
            lambda shape, dtype=None: before,
            shape=var.shape,
            dtype=var.dtype,
            trainable=False,
            name=name,
        )
