"""Checks of arguments of several records, and suggestions for misspelt names."""

import difflib
import functools
import inspect
import numbers
import os
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard, TypeVar

from keras_tpu_estimator.base.common.shown import shown


def is_int(value: object) -> TypeGuard[int]:
    """Returns whether a value is a Python or NumPy integer, but not a boolean."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether a value is a Python or NumPy number, but not a boolean."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_int(name: str, value: object, minimum: int) -> None:
    """Checks that the argument `name` is an integer of at least `minimum`, 0 or 1."""
    if not is_int(value):
        raise TypeError(
            f"`{name}` must be an int. Received: {shown(value)}. Pass an "
            f"integer of at least {minimum}."
        )
    if value < minimum:
        expected = "positive" if minimum else "zero or positive"
        raise ValueError(
            f"`{name}` must be {expected}. Received: {value}. Pass {minimum} or more."
        )


def tuple_of(
    name: str, value: object, kind: type | types.UnionType, noun: str
) -> tuple[Any, ...]:
    """Returns the objects of an iterable as a tuple, which is empty for `None`.

    Users may pass one object of the type `kind`; the error uses the noun for it.
    """
    if isinstance(value, kind) or not isinstance(value, Iterable | None):
        raise TypeError(
            f"`{name}` must be a list of {noun}s. Received: {shown(value)}. "
            f"Pass {name}=[{noun}] for one."
        )
    return tuple(value or ())


def directory_string(name: str, value: object) -> str:
    """Returns a `str`, `bytes` or path object as a non-empty `str`."""
    if not isinstance(value, str | bytes | os.PathLike):
        raise TypeError(
            f"{name} must be a path. Received: {shown(value)}. Pass a string "
            "or a pathlib.Path."
        )
    directory = os.fsdecode(value)
    if not directory:
        raise ValueError(
            f"{name} must be a path or None. Received an empty string. "
            "Pass a directory, or omit it."
        )
    return directory


T = TypeVar("T", bound=type)


def did_you_mean(name: object, names: Iterable[object]) -> str:
    """Returns a question with the most similar of some names, if one is similar.

    Only strings count.

    >>> did_you_mean("imagee", ["image", "label"])
    " Did you mean 'image'?"
    """
    strings = [candidate for candidate in names if isinstance(candidate, str)]
    close = difflib.get_close_matches(str(name), strings, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def suggesting(kind: T) -> T:
    """Makes a class suggest the most similar argument in place of a misspelt one."""
    init: Callable[..., None] = kind.__init__  # type: ignore[misc]
    names = list(inspect.signature(init).parameters)[1:]
    accepted = frozenset(names)

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        if not kwargs.keys() <= accepted:
            unknown = next(name for name in kwargs if name not in accepted)
            meant = did_you_mean(unknown, names) or f" Use some of {names}."
            raise TypeError(
                f"The arguments of {kind.__name__} must have known names. "
                f"Received: {unknown!r}.{meant}"
            )
        init(self, *args, **kwargs)

    kind.__init__ = checked  # type: ignore[misc]
    return kind
