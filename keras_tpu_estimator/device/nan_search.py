"""Finding the operation that the first NaN comes from."""

import functools
import sysconfig
import traceback
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import checkify

_LIBRARIES = (
    sysconfig.get_path("purelib"),
    sysconfig.get_path("stdlib"),
    __file__.removesuffix("nan_search.py"),
)


def checking_nans(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function that raises at the first NaN among its operations.

    Args:
        function: A function of arrays, and of static keyword arguments.

    Returns:
        A function of the same arguments; it raises `FloatingPointError` with
        the operation and the line of the user's code that it stands in.

    Example:

    >>> import jax.numpy as jnp
    >>> from keras_tpu_estimator.device.nan_search import checking_nans
    >>> float(checking_nans(jnp.log)(1.0))
    0.0

    Reference: `jax.experimental.checkify`.
    """

    @functools.cache
    def compiled(**static: Any) -> Callable[..., Any]:
        bound = functools.partial(function, **static)
        return jax.jit(checkify.checkify(bound, errors=checkify.nan_checks))

    def run(*args: Any, **static: Any) -> Any:
        error, outputs = compiled(**static)(*args)
        try:
            error.throw()
        except checkify.JaxRuntimeError as found:
            raise FloatingPointError(_message(found)) from found
        return outputs

    return run


def _message(found: BaseException) -> str:
    frames = traceback.extract_tb((found.__cause__ or found).__traceback__)
    own = [f for f in frames if not f.filename.startswith(_LIBRARIES)]
    where = "an unknown line"
    if own:
        where = f"{own[-1].filename}:{own[-1].lineno}, in {own[-1].name}"
    return (
        f"Expected numbers from every operation. Received NaN: {found} It "
        f"comes from {where}."
    )
