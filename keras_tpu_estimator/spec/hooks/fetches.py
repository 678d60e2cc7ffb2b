"""What hooks may fetch: names, and nests of names."""

import functools
import reprlib
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from keras_tpu_estimator.ground.base.plain_names import plain_name
from keras_tpu_estimator.ground.base.warned import warn_once

_NO_FEED = (
    "Nothing is fed into a compiled device loop. Put the value into the "
    "features that `input_fn` yields, or into `params`."
)


def check_names(argument: str, fetches: Any) -> None:
    """Checks that something to fetch is a name, or a nest of names.

    Args:
        argument: What to call it in an error.
        fetches: A string, or a list, tuple or dict of such.

    Raises:
        TypeError: A part of it is something else, such as a tensor.

    Example:

    >>> from keras_tpu_estimator.spec.hooks.fetches import check_names
    >>> check_names("tensors", {"loss": "loss", "rest": ["dense/bias"]})
    """
    _map(functools.partial(check_name, argument), fetches)


def names_in(fetches: Any) -> set[str]:
    """The names in a nest of names.

    Args:
        fetches: A string, or a list, tuple or dict of such.

    Example:

    >>> from keras_tpu_estimator.spec.hooks.fetches import names_in
    >>> sorted(names_in({"loss": "loss", "rest": ["dense/bias:0"]}))
    ['dense/bias', 'loss']
    """
    names: set[str] = set()
    _map(lambda name: names.add(plain_name(name)), fetches)
    return names


def values_of(fetches: Any, value_of: Callable[[str], Any]) -> Any:
    """A nest of names with values in their place.

    Args:
        fetches: A string, or a list, tuple or dict of such.
        value_of: Returns the value of a name.

    Returns:
        Values in the same nest, whose keys stay as they are.

    Example:

    >>> from keras_tpu_estimator.spec.hooks.fetches import values_of
    >>> values_of({"loss:0": ["loss:0"]}, {"loss": 0.5}.__getitem__)
    {'loss:0': [0.5]}
    """
    return _map(lambda name: value_of(plain_name(name)), fetches)


def _map(function: Callable[[str], Any], fetches: Any) -> Any:
    """Walks a nest; returns it with each name as a function makes it."""
    if isinstance(fetches, str):  # Mostly, and the other types are slow.
        return function(fetches)
    if isinstance(fetches, Mapping):
        return {key: _map(function, each) for key, each in fetches.items()}
    if isinstance(fetches, list | tuple):
        values = [_map(function, each) for each in fetches]
        # A named tuple takes its fields one by one.
        make = getattr(fetches, "_make", type(fetches))
        return make(values)
    return function(fetches)


def check_name(argument: str, name: Any) -> None:
    """Checks that something to fetch is one name.

    Args:
        argument: What to call it in an error.

    Raises:
        TypeError: It is something else.

    Example:

    >>> from keras_tpu_estimator.spec.hooks.fetches import check_name
    >>> check_name("loss_tensor", "loss")
    """
    if not isinstance(name, str):
        raise TypeError(
            f"`{argument}` should be given by name. Expected 'loss', "
            "'global_step', the path of a variable, or a key of predictions. "
            f"Received: {reprlib.repr(name)} of type {type(name).__name__}. "
            'Name a tensor in model_fn with kte.identity(x, name="...") and '
            "pass that name; for a variable pass its `path`."
        )


def refuse_feed(argument: str, feed: Any) -> None:
    """Refuses values to feed.

    Args:
        argument: What to call them in an error.
        feed: What was given; empty is all right.

    Raises:
        ValueError: Something was given.

    Example:

    >>> from keras_tpu_estimator.spec.hooks.fetches import refuse_feed
    >>> refuse_feed("feed_dict", None)
    """
    if feed:
        raise ValueError(
            f"`{argument}` should be None. Received: {reprlib.repr(feed)}. "
            f"{_NO_FEED}"
        )


def warn_of_options(owner: str, options: Any, name: str = "options") -> None:
    """Warns once that options of a run have no effect.

    Args:
        owner: What has the options, for the warning.
        options: What was given; `None` asks for nothing.
        name: The name of the argument. Defaults to `'options'`.

    Example:

    >>> from keras_tpu_estimator.spec.hooks.fetches import warn_of_options
    >>> warn_of_options("SessionRunArgs", None)
    """
    if options is not None:
        warn_once(
            f"`{name}` of {owner} has no effect, because the steps of a run "
            "are one program. Use hooks.ProfilerHook to trace it."
        )
