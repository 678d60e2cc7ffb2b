"""Functions that NumPy has removed or changed since 2018.

They have the original names and are in a module, so that they can be pickled.
"""

import builtins
import types
from typing import Any

import numpy as np


def alen(a: Any) -> int:
    """Returns the length of the first axis."""
    return len(np.atleast_1d(a))


def array(*args: Any, copy: Any = True, **kwargs: Any) -> Any:
    """Returns an array, and copies with `copy=False` only if necessary."""
    return np.array(*args, copy=copy or None, **kwargs)


def asfarray(a: Any, dtype: Any = np.float64) -> Any:
    """Returns an array of floats."""
    return np.asarray(a, dtype)


def asscalar(a: Any) -> Any:
    """Returns the number in an array."""
    return a.item()


def fromstring(
    string: Any, dtype: Any = float, count: int = -1, *, sep: str = ""
) -> Any:
    """Returns the numbers of a text, or those in binary data if `sep` is empty."""
    if sep:
        return np.fromstring(string, dtype, count, sep=sep)
    return np.frombuffer(string, dtype, count).copy()


def in1d(ar1: Any, ar2: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns whether each element of an array is in another."""
    return np.isin(np.ravel(ar1), ar2, *args, **kwargs)


def msort(a: Any) -> Any:
    """Returns a copy that is sorted along the first axis."""
    return np.sort(a, axis=0)


def sum(a: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A001 - NumPy's name
    """Returns the sum over axes, or of a generator."""
    if isinstance(a, types.GeneratorType):
        return builtins.sum(a)
    return np.sum(a, *args, **kwargs)
