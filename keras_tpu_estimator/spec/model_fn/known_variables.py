"""What a `model_fn` has made so far, and the step it is at."""

import contextlib
import enum
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import keras

from keras_tpu_estimator.ground.tracing import keras_internals
from keras_tpu_estimator.ground.tracing.rows_variable import RowsVariable
from keras_tpu_estimator.ground.tracing.variables import Sharing
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


class Reuse(enum.Enum):
    """How variables are reused, besides `True` and `False`.

    Attributes:
        AUTO: Those that are there are reused, and others are made.
    """

    AUTO = "auto"


AUTO_REUSE = Reuse.AUTO
"""What `variable_scope` takes as `reuse`, to make what is not there yet."""


@contextlib.contextmanager
def variable_scope(
    name: str, reuse: bool | Reuse | None = None
) -> Iterator[None]:
    """Puts layers and variables made in a `with` block under a path.

    For use in a `model_fn`; the counterpart of `tf.compat.v1.variable_scope`.
    Automatic names begin anew, so that the same layers have the same paths in
    each block of the same name. With `reuse` they share their variables; to
    create a layer once, and call it twice, does the same.

    Args:
        name: The path, which goes below that of an outer block.
        reuse: `True` if all variables should be there already, `AUTO_REUSE` if
            they may be. Defaults to `None`, for what an outer block says;
            outside of all, a variable that is there is an error.

    Raises:
        ValueError: It is called outside a `model_fn`, or `name` is empty.
        TypeError: `reuse` is nothing of these.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import keras
    >>> def judge(x):
    ...     with kte.variable_scope("judge", reuse=kte.AUTO_REUSE):
    ...         return keras.layers.Dense(1)(x)
    >>> def model_fn(features, labels, mode, params):
    ...     difference = judge(features["real"]) - judge(features["made"])
    ...     return kte.TPUEstimatorSpec(mode, predictions={"d": difference})
    """
    scope = scope_for("variable_scope")
    parts = [part for part in str(name).split("/") if part]
    if not parts:
        raise ValueError(
            f"`name` should be a path such as 'generator'. Received: {name!r}"
        )
    with contextlib.ExitStack() as stack:
        for part in parts:
            stack.enter_context(keras.name_scope(part))
        keras_internals.begin_names_anew()
        stack.enter_context(scope.sharing_of(_sharing(reuse, scope.sharing)))
        yield


def _sharing(reuse: bool | Reuse | None, outer: Sharing) -> Sharing:
    if reuse is AUTO_REUSE:
        return "allowed"
    if reuse is True:
        return "required"
    if reuse is None or reuse is False:
        return outer
    raise TypeError(
        "`reuse` should be True, False, None or kte.AUTO_REUSE. Received: "
        f"{reuse!r}"
    )
