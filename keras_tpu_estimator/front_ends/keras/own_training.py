"""A warning about Keras models whose custom `train_step` is not called."""

import contextlib
import contextvars
import functools
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import keras

_warns: contextvars.ContextVar[bool] = contextvars.ContextVar("warns", default=False)
# The classes that already caused the warning, as in Python's `warnings`.
_told: dict[Any, Any] = {}


@contextlib.contextmanager
def told_of() -> Iterator[None]:
    """Warns about each class with a `train_step` that is called in a block."""
    _watch_calls()
    token = _warns.set(True)
    try:
        yield
    finally:
        _warns.reset(token)


@functools.cache
def _watch_calls() -> None:
    """Makes calls of Keras models observable; installs that once."""
    call = keras.Model.__call__

    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        own = type(self).train_step
        if _warns.get() and own is not keras.Model.train_step:
            _warn(type(self), inspect.unwrap(own))
        return call(self, *args, **kwargs)

    keras.Model.__call__ = __call__


def _warn(cls: type, train_step: Any) -> None:
    code = getattr(train_step, "__code__", None)
    warnings.warn_explicit(
        f"The class {cls.__name__} has a custom `train_step`, which an "
        "estimator does not call: the `train_op` of `model_fn` trains. "
        "Expected a model that is only called there. Compute the loss in "
        "model_fn as `train_step` does, and gradients, if needed, with "
        "kte.gradients.",
        UserWarning,
        code.co_filename if code else __file__,
        code.co_firstlineno if code else 0,
        registry=_told,
    )
