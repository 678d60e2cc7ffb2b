"""Scopes of variables that may be shared, as in TF1."""

import contextlib
import enum
from collections.abc import Iterator

import keras

from keras_tpu_estimator.ground.tracing import keras_internals
from keras_tpu_estimator.ground.tracing.variables import Sharing
from keras_tpu_estimator.ground.tracing.variables import scope_for


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
