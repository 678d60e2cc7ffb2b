"""The names that hooks fetch, and pytrees of names."""

import functools
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.base.common.shown import plain_name

_NO_FEED = (
    "Values cannot be fed into a compiled device loop. Put the value into "
    "the features that `input_fn` yields, or into `params`."
)


def check_names(argument: str, fetches: Any) -> None:
    """Checks that an argument is a name, or a pytree of names."""
    _map(functools.partial(check_name, argument), fetches)


def names_in(fetches: Any) -> set[str]:
    """Returns the names in a pytree of names."""
    names: set[str] = set()
    _map(lambda name: names.add(plain_name(name)), fetches)
    return names


def values_of(fetches: Any, value_of: Callable[[str], Any]) -> Any:
    """Returns a pytree of names with values in their place.

    Args:
        fetches: A string, or a list, tuple or dict of strings.
        value_of: Returns the value of a name.

    Returns:
        Values in the same pytree, whose keys stay as they are.

    Example:

    >>> from keras_tpu_estimator.api.hooks.fetches import values_of
    >>> values_of({"loss:0": ["loss:0"]}, {"loss": 0.5}.__getitem__)
    {'loss:0': [0.5]}
    """
    return _map(lambda name: value_of(plain_name(name)), fetches)


def _map(function: Callable[[str], Any], fetches: Any) -> Any:
    """Maps a function over the names in a pytree."""
    # The most frequent case, which the other checks would slow down.
    if isinstance(fetches, str):
        return function(fetches)
    if isinstance(fetches, Mapping):
        return {key: _map(function, each) for key, each in fetches.items()}
    if isinstance(fetches, list | tuple):
        values = [_map(function, each) for each in fetches]
        # The constructor of a named tuple takes separate fields.
        make = getattr(fetches, "_make", type(fetches))
        return make(values)
    return function(fetches)


def check_name(argument: str, name: Any) -> None:
    """Checks that an argument is one name."""
    if not isinstance(name, str):
        raise TypeError(
            f"`{argument}` must be given by name. Expected 'loss', "
            "'global_step', the path of a variable, or a key of predictions. "
            f"Received: {reprlib.repr(name)} of type {type(name).__name__}. "
            'Name a tensor in model_fn with kte.identity(x, name="...") '
            "and pass that name; for a variable pass its `path`."
        )


def refuse_feed(argument: str, feed: Any) -> None:
    """Raises an error for values that cannot be fed."""
    if feed:
        raise ValueError(
            f"`{argument}` must be None. Received: {reprlib.repr(feed)}. {_NO_FEED}"
        )


def warn_of_options(owner: str, options: Any, name: str = "options") -> None:
    """Logs one warning if options of a run are set."""
    if options is not None:
        warn_once(
            f"`{name}` of {owner} has no effect, because the steps of a run "
            "are one program. Use hooks.ProfilerHook to trace it."
        )
