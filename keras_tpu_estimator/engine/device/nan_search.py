"""The search for the operation that makes the first NaN."""

import functools
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import jax
from jax.experimental import checkify

from keras_tpu_estimator.base.common.user_code import is_of_user


class Compiled(Protocol):
    """The methods of a jitted function that the device loop uses."""

    def __call__(self, *args: Any, **static: Any) -> Any:
        """Runs the function."""

    def trace(self, *args: Any, **static: Any) -> jax.stages.Traced:
        """Traces the function for arguments of these shapes."""


def checking_nans(function: Callable[..., Any]) -> Compiled:
    """Compiles a function that raises at the first NaN among its operations.

    The `FloatingPointError` names the operation and the user's line. `trace` traces a
    function that also returns the error. It uses `jax.experimental.checkify`.
    """

    return _CheckingNans(function)


class _CheckingNans:
    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._checked: dict[Any, Any] = {}

    def __call__(self, *args: Any, **static: Any) -> Any:
        error, outputs = self._compiled(static)(*args)
        try:
            error.throw()
        except checkify.JaxRuntimeError as found:
            raise FloatingPointError(_message(found)) from found
        return outputs

    def trace(self, *args: Any, **static: Any) -> jax.stages.Traced:
        return self._compiled(static).trace(*args)

    def _compiled(self, static: dict[str, Any]) -> Any:
        key = tuple(sorted(static.items(), key=lambda item: item[0]))
        if key not in self._checked:
            bound = functools.partial(self._function, **static)
            self._checked[key] = jax.jit(
                checkify.checkify(bound, errors=checkify.nan_checks)
            )
        return self._checked[key]


def _message(error: BaseException) -> str:
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    user_frames = [frame for frame in frames if is_of_user(frame.filename)]
    where = "an unknown line"
    if user_frames:
        last = user_frames[-1]
        where = f"{last.filename}:{last.lineno}, in {last.name}"
    return (
        f"With `debug_nans` every operation must return numbers. Received NaN: "
        f"{error} It comes from {where}. Correct the inputs of that operation."
    )
