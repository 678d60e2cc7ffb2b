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
    """Returns whether a value is a Python or NumPy integer, but not a boolean.

    Example:

    >>> from keras_tpu_estimator.base.common.field_checks import is_int
    >>> is_int(3), is_int(True), is_int(3.0)
    (True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether a value is a Python or NumPy number, but not a boolean.

    Example:

    >>> from keras_tpu_estimator.base.common.field_checks import is_number
    >>> is_number(0.5), is_number(3), is_number(True), is_number("3")
    (True, True, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_int(name: str, value: object, minimum: int) -> None:
    """Checks that a value is an integer of at least `minimum`.

    Args:
        name: The name of the argument in messages.
        value: The argument.
        minimum: The smallest allowed integer, 0 or 1.

    Raises:
        TypeError: The value is not an integer.
        ValueError: The value is smaller than `minimum`.

    Example:

    >>> from keras_tpu_estimator.base.common.field_checks import check_int
    >>> check_int("num_shards", 0, minimum=1)
    Traceback (most recent call last):
    ...
    ValueError: `num_shards` must be positive. Received: 0. Pass 1 or more.
    """
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
    """Returns the objects of an iterable as a tuple.

    Args:
        name: The name of the argument in messages.
        value: An iterable, or `None` for an empty one.
        kind: The type of one object, which users may pass by mistake.
        noun: The noun for one object in messages.

    Raises:
        TypeError: The value is not an iterable, or is a single object.

    Example:

    >>> from keras_tpu_estimator.base.common.field_checks import tuple_of
    >>> tuple_of("steps", [1, 2], int, "step"), tuple_of("x", None, int, "x")
    ((1, 2), ())
    >>> tuple_of("steps", 1, int, "step")
    Traceback (most recent call last):
    ...
    TypeError: `steps` must be a list of steps. ... Pass steps=[step] for one.
    """
    if isinstance(value, kind) or not isinstance(value, Iterable | None):
        raise TypeError(
            f"`{name}` must be a list of {noun}s. Received: {shown(value)}. "
            f"Pass {name}=[{noun}] for one."
        )
    return tuple(value or ())


def directory_string(name: str, value: object) -> str:
    """A directory as a string.

    Args:
        name: The name of the value in messages.
        value: A `str`, `bytes` or path object.

    Returns:
        The same directory as a `str`.

    Raises:
        TypeError: The value is no path.
        ValueError: It is empty.

    Example:

    >>> import pathlib
    >>> directory_string("`model_dir`", pathlib.PurePosixPath("/run"))
    '/run'
    """
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
    """Returns a question with the most similar of some names.

    Args:
        name: The unknown name.
        names: The known names. Only strings count.

    Returns:
        A sentence after a space, or "" if no name is similar.

    Example:

    >>> did_you_mean("imagee", ["image", "label"])
    " Did you mean 'image'?"
    >>> did_you_mean("x", ["image", "label"])
    ''
    """
    known = [each for each in names if isinstance(each, str)]
    close = difflib.get_close_matches(str(name), known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def suggesting(kind: T) -> T:
    """Makes a class suggest an argument in place of a misspelt one.

    Returns:
        The same class. It raises a `TypeError` that names the most similar
        argument, or otherwise all of them.

    Example:

    >>> @suggesting
    ... class Loop:
    ...     def __init__(self, iterations=1):
    ...         self.iterations = iterations
    >>> Loop(iteration=2)
    Traceback (most recent call last):
    ...
    TypeError: Loop has no argument 'iteration'. Did you mean 'iterations'?
    """
    init: Callable[..., None] = kind.__init__  # type: ignore[misc]
    names = list(inspect.signature(init).parameters)[1:]
    known = frozenset(names)

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        if not kwargs.keys() <= known:
            unknown = next(name for name in kwargs if name not in known)
            meant = did_you_mean(unknown, names) or f" Expected some of {names}"
            raise TypeError(f"{kind.__name__} has no argument {unknown!r}.{meant}")
        init(self, *args, **kwargs)

    kind.__init__ = checked  # type: ignore[misc]
    return kind
