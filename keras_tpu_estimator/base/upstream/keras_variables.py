"""Keras variables: the attributes and functions that a trace needs.

`keras.StatelessScope` publicly gives variables other values in a block, so that a trace
needs little else: it must also see variables when they are made, accept tensors as
their initial values, and name them.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_tpu_estimator.base.upstream.private_names import (
    PrivateAttribute,
    PrivateName,
)
from keras_tpu_estimator.base.upstream.replacements import Replacement


def _scalar() -> keras.Variable:
    return keras.Variable(np.zeros((), "int32"), name="scalar")


def _is_value(attribute: PrivateAttribute) -> bool:
    variable, array = _scalar(), np.ones(2)
    attribute.set(variable, array)
    return variable.value is array


def _is_path(attribute: PrivateAttribute) -> bool:
    variable = _scalar()
    attribute.set(variable, "scope/other")
    return bool(variable.path == "scope/other")


def _is_dtype(attribute: PrivateAttribute) -> bool:
    return str(attribute.get(_scalar())) == "int32"


VALUE = PrivateAttribute(
    "holds the array of a variable, of any shape",
    "keras.Variable._value",
    _is_value,
)
PATH = PrivateAttribute(
    "holds the path of a variable, by which this package identifies it",
    "keras.Variable._path",
    _is_path,
)
DTYPE = PrivateAttribute(
    "holds the dtype in which a variable is stored, despite autocast scopes",
    "keras.Variable._dtype",
    _is_dtype,
)
CREATION = Replacement(
    PrivateName(
        "makes every variable; Keras rejects those made from arrays in a trace, and "
        "does not report new ones",
        ("keras.Variable.__init__",),
    ),
    lambda: keras.layers.Layer().add_weight(shape=(), name="weight"),
)
ASSIGNMENT = Replacement(
    PrivateName(
        "assigns every variable; Keras truncates 64-bit integers",
        ("keras.Variable.assign",),
    ),
    lambda: setattr(keras.optimizers.SGD(0.5), "learning_rate", 0.25),
)
RATE = Replacement(
    PrivateName(
        "receives learning rates; Keras accepts functions, but no tensors of a trace",
        ("keras.optimizers.Optimizer.__init__",),
    ),
    lambda: keras.optimizers.SGD(0.5),
)


def stored_dtype(variable: keras.Variable) -> str:
    """Returns the dtype in which a variable is stored, despite autocast scopes."""
    dtype: str = DTYPE.get(variable)
    return dtype


def hold(variable: keras.Variable, value: Any) -> None:
    """Sets the array of a variable, which may have any shape."""
    VALUE.set(variable, value)


def has_value(variable: keras.Variable) -> bool:
    """Returns whether a variable has an array, which Keras's `fit` removes."""
    return VALUE.get(variable) is not None


def set_path(variable: keras.Variable, path: str) -> None:
    """Sets the path of a variable."""
    PATH.set(variable, path)


@contextlib.contextmanager
def creation_intercepted(
    create: Callable[[Callable[..., None], keras.Variable, Any, dict[str, Any]], None],
) -> Iterator[None]:
    """Calls `create` with the constructor and its arguments to make any variable."""

    def behaviour(
        construct: Callable[..., None],
        variable: keras.Variable,
        initializer: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        # `shape`, `dtype` and `trainable` may be passed by position.
        kwargs.update(zip(("shape", "dtype", "trainable"), args, strict=False))
        create(construct, variable, initializer, kwargs)

    with CREATION.block(behaviour):
        yield


@contextlib.contextmanager
def assignment_checked(
    fitting: Callable[[keras.Variable, Any], Any],
) -> Iterator[None]:
    """Assigns `fitting(variable, value)` instead of each value in a `with` block."""

    def behaviour(
        assign: Callable[..., Any], variable: keras.Variable, value: Any
    ) -> Any:
        return assign(variable, fitting(variable, value))

    with ASSIGNMENT.block(behaviour):
        yield


@contextlib.contextmanager
def tensors_accepted_as_rates(is_tensor: Callable[[object], bool]) -> Iterator[None]:
    """Makes optimizers accept tensors as learning rates in a `with` block."""

    def behaviour(
        construct: Callable[..., None],
        optimizer: Any,
        learning_rate: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        rate = (lambda: learning_rate) if is_tensor(learning_rate) else learning_rate
        construct(optimizer, rate, *args, **kwargs)

    with RATE.block(behaviour):
        yield
