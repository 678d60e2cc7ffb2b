"""The variables of a `model_fn`, its variable scopes and its step."""

import contextlib
import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras

from keras_tpu_estimator.api.model_fn.initialization import program_variables
from keras_tpu_estimator.base.tracing.variable_classes import RowsVariable
from keras_tpu_estimator.base.tracing.variables import (
    Sharing,
    current_scope,
    scope_for,
)
from keras_tpu_estimator.base.upstream import keras_state


def trainable_variables() -> list[keras.Variable]:
    """Returns the trainable variables that `model_fn` has used so far.

    For use in a `model_fn` or a `scaffold_fn`; the counterpart of
    `tf.compat.v1.trainable_variables`. Embedding tables of
    `embedding_config_spec` are not included.

    Returns:
        A list of `keras.Variable`, in the order of creation.

    Raises:
        ValueError: The call is not in one of these functions.
    """
    return [
        variable
        for variable in _variables("trainable_variables")
        if variable.trainable and not isinstance(variable, RowsVariable)
    ]


def tables() -> list[str]:
    """Returns the names of the embedding tables of `model_fn`'s activations."""
    return sorted(
        path
        for path, variable in program_variables().items()
        if variable.trainable and isinstance(variable, RowsVariable)
    )


def global_variables() -> list[keras.Variable]:
    """Returns all variables that `model_fn` has used so far.

    For use in a `model_fn` or a `scaffold_fn`; the counterpart of
    `tf.compat.v1.global_variables`. It includes moving averages of layers and
    the state of random generators, but no variables of the optimizer.

    Returns:
        A list of `keras.Variable`, in the order of creation.

    Raises:
        ValueError: The call is not in one of these functions.
    """
    return list(_variables("global_variables"))


def get_global_step() -> Any:
    """Returns the number of completed training steps, as a tensor.

    For use in a `model_fn`, in any mode; the counterpart of
    `tf.compat.v1.train.get_global_step`.

    Returns:
        Scalar int32 tensor.

    Raises:
        ValueError: The call is outside a `model_fn`.
    """
    scope = scope_for("get_global_step")
    return scope.get_current_value(scope.program_variables["global_step"])


def _variables(caller: str) -> Iterable[keras.Variable]:
    variables = program_variables()
    if current_scope() is None and variables:
        return variables.values()
    return scope_for(caller).objects.values()


class Reuse(enum.Enum):
    """The ways to reuse variables, besides `True` and `False`.

    Attributes:
        AUTO: Reuse existing variables, and create missing ones.
    """

    AUTO = "auto"


AUTO_REUSE = Reuse.AUTO
"""What `variable_scope` takes as `reuse`, to make what is not there yet."""


@contextlib.contextmanager
def variable_scope(
    name: str | None,
    reuse: bool | Reuse | None = None,
    default_name: str | None = None,
) -> Iterator[None]:
    """Puts layers and variables created in a `with` block under a path.

    For use in a `model_fn`; the counterpart of `tf.compat.v1.variable_scope`.
    Automatic names restart, so that the same layers have the same paths in each
    block of the same name. With `reuse` they share their variables. To create a
    layer once and call it twice has the same effect.

    Args:
        name: The path, appended to that of an outer block, or `None`.
        reuse: `True` if all variables must exist, `AUTO_REUSE` if they may
            exist. Defaults to `None`, for the value of an outer block; without
            one, an existing variable is an error.
        default_name: The name if `name` is `None`. Later blocks of this name in
            the same outer block are numbered, as `default_name` and
            'default_name_1'. Defaults to `None`.

    Raises:
        ValueError: The call is outside a `model_fn`, `name` is empty or both names
            are `None`, or `reuse` is combined with `default_name`.
        TypeError: `reuse` has another value.

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
    if name is None and default_name is not None:
        if reuse:
            raise ValueError(
                "With `reuse` a scope must have a `name`, because `default_name` is "
                f"numbered. Received: reuse={reuse!r}, default_name={default_name!r}. "
                "Pass the name of the earlier block."
            )
        name = unique_name(default_name)
    parts = [part for part in str(name or "").split("/") if part]
    if not parts:
        raise ValueError(
            f"`name` must be a path such as 'generator'. Received: {name!r}. Pass a "
            "name, or `default_name`."
        )
    with contextlib.ExitStack() as stack:
        for part in parts:
            stack.enter_context(keras.name_scope(part))
        # The block "a/b" leaves the name "a" free, as in TensorFlow.
        scope.blocks.add(keras_state.name_path())
        keras_state.restart_names()
        stack.enter_context(scope.sharing_of(_sharing(reuse, scope.sharing)))
        yield


def get_variable(
    name: str,
    shape: Sequence[int],
    dtype: str | None = None,
    initializer: Any = "glorot_uniform",
    trainable: bool = True,
) -> keras.Variable:
    """Creates a variable under a path, or returns that of a scope with `reuse`.

    For use in a `model_fn`; the counterpart of `tf.compat.v1.get_variable`. Where the
    name is no path, `keras.Variable(initializer, shape, name=name)` does the same.

    Args:
        name: The path below the scope, such as "layer/kernel".
        shape: The sizes of the axes.
        dtype: The dtype. Defaults to `None`, for Keras's `floatx`.
        initializer: An initializer of Keras, or its name. Defaults to
            "glorot_uniform".
        trainable: Whether optimizers update it. Defaults to `True`.

    Returns:
        A `keras.Variable`.

    Raises:
        ValueError: The call is outside a `model_fn`, or the variable exists and
            its scope does not reuse it.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> def moment_of(variable):
    ...     path = variable.path + "/moment"
    ...     return kte.get_variable(path, variable.shape, initializer="zeros")
    """
    *folders, last = name.split("/")
    with contextlib.ExitStack() as stack:
        if folders:
            stack.enter_context(variable_scope("/".join(folders)))
        initializer = keras.initializers.get(initializer)
        return keras.Variable(
            initializer, shape, dtype=dtype, trainable=trainable, name=last
        )


def unique_name(name: str) -> str:
    """Returns a name that the current block of `variable_scope` has not used.

    For use in a `model_fn`, with layers whose names TensorFlow numbers, such as those
    of `tf.contrib.layers`. Layers without a name have names such as "dense" and
    "dense_1" by themselves.

    Args:
        name: The name for the first call, such as "LayerNorm".

    Returns:
        The name, and in later calls of the same block "LayerNorm_1", "LayerNorm_2", ...

    Raises:
        ValueError: The call is outside a `model_fn`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import keras
    >>> def layer_norm(x, name=None):
    ...     name = name or kte.unique_name("LayerNorm")
    ...     return keras.layers.LayerNormalization(epsilon=1e-12, name=name)(x)
    """
    scope = scope_for("unique_name")
    outer = keras_state.name_path()
    while True:
        earlier = keras.backend.get_uid(name) - 1
        numbered = f"{name}_{earlier}" if earlier else name
        if f"{outer}/{numbered}".lstrip("/") not in scope.blocks:
            return numbered


def _sharing(reuse: bool | Reuse | None, outer: Sharing) -> Sharing:
    if reuse is AUTO_REUSE:
        return "allowed"
    if reuse is True:
        return "required"
    if reuse is None or reuse is False:
        return outer
    raise TypeError(
        f"`reuse` must be True, False, None or kte.AUTO_REUSE. Received: {reuse!r}"
    )
