"""What a `model_fn` has made so far, and the step it is at."""

from collections.abc import Iterable
from typing import Any

import keras

from keras_tpu_estimator.ground.tracing.rows_variable import RowsVariable
from keras_tpu_estimator.ground.tracing.variables import current_scope
from keras_tpu_estimator.ground.tracing.variables import scope_for
from keras_tpu_estimator.spec.model_fn.initialization import program_variables


def trainable_variables() -> list[keras.Variable]:
    """The trainable variables that `model_fn` has made or used so far.

    For use in a `model_fn` or a `scaffold_fn`; the counterpart of
    `tf.compat.v1.trainable_variables`. Tables of `embedding_config_spec` are
    not among them.

    Returns:
        A list of `keras.Variable`, in the order of creation.

    Raises:
        ValueError: It is called elsewhere.
    """
    return [
        variable
        for variable in _variables("trainable_variables")
        if variable.trainable and not isinstance(variable, RowsVariable)
    ]


def tables() -> list[str]:
    """The names of the tables that `model_fn` is given activations of."""
    return sorted(
        path
        for path, variable in program_variables().items()
        if variable.trainable and isinstance(variable, RowsVariable)
    )


def global_variables() -> list[keras.Variable]:
    """All variables that `model_fn` has made or used so far.

    For use in a `model_fn` or a `scaffold_fn`; the counterpart of
    `tf.compat.v1.global_variables`. Moving averages of layers and the state of
    random generators are among them, and variables of the optimizer are not.

    Returns:
        A list of `keras.Variable`, in the order of creation.

    Raises:
        ValueError: It is called elsewhere.
    """
    return list(_variables("global_variables"))


def get_global_step() -> Any:
    """The number of training steps made so far, as a tensor.

    For use in a `model_fn`, in any mode; the counterpart of
    `tf.compat.v1.train.get_global_step`.

    Returns:
        Scalar int32 tensor.

    Raises:
        ValueError: It is called outside a `model_fn`.
    """
    scope = scope_for("get_global_step")
    return scope.get_current_value(scope.known["global_step"])


def _variables(caller: str) -> Iterable[keras.Variable]:
    made = program_variables()
    if current_scope() is None and made:
        return made.values()
    return scope_for(caller).objects.values()
