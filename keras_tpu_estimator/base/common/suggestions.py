"""Suggestions for misspelt names."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

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
