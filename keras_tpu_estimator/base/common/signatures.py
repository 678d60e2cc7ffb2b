"""The arguments of callables, and the callables that they wrap."""

import functools
import inspect
from collections.abc import Iterator
from typing import Any


def argument_names(function: Any) -> tuple[str, ...]:
    """Returns the names of the arguments that a caller may pass.

    These exclude `*args`, `**kwargs` and arguments that a `functools.partial`
    binds, even below decorators that keep the signature of their function.

    Args:
        function: A callable.

    Example:

    >>> import functools
    >>> def model_fn(features, depth, mode): ...
    >>> bound = functools.partial(model_fn, depth=3)
    >>> @functools.wraps(bound)
    ... def decorated(*args, **kwargs):
    ...     return bound(*args, **kwargs)
    >>> argument_names(decorated)
    ('features', 'mode')
    """
    bound: set[str] = set()
    for each in layers_of(function):
        if isinstance(each, functools.partial):
            # Its signature still contains them, with defaults.
            bound.update(each.keywords)
        if hasattr(each, "__signature__"):
            break
    return tuple(
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in bound
    )


def layers_of(function: Any) -> Iterator[Any]:
    """Yields a callable and the callables that it wraps, outermost first.

    Args:
        function: The callable: a decorated function, a `functools.partial`, a
            bound method, or any other.
    """
    seen = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        function = _wrapped(function)


def _wrapped(function: Any) -> Any:
    if isinstance(function, functools.partial):
        return function.func
    if inspect.ismethod(function):
        return function.__func__
    return getattr(function, "__wrapped__", None)
