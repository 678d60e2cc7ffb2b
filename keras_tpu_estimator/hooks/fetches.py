"""What hooks may fetch: names, and nests of names."""

import reprlib
from collections.abc import Mapping
from typing import Any

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

    >>> from keras_tpu_estimator.hooks.fetches import check_names
    >>> check_names("tensors", {"loss": "loss", "rest": ["dense/bias"]})
    """
    if isinstance(fetches, Mapping):
        fetches = list(fetches.values())
    if isinstance(fetches, list | tuple):
        for each in fetches:
            check_names(argument, each)
    else:
        check_name(argument, fetches)


def check_name(argument: str, name: Any) -> None:
    """Checks that something to fetch is one name.

    Args:
        argument: What to call it in an error.
        name: A string.

    Raises:
        TypeError: It is something else.

    Example:

    >>> from keras_tpu_estimator.hooks.fetches import check_name
    >>> check_name("loss_tensor", "loss")
    """
    if not isinstance(name, str):
        raise TypeError(
            f"`{argument}` should be given by name. Expected 'loss', "
            "'global_step' or the path of a variable. Received: "
            f"{reprlib.repr(name)} of type {type(name).__name__}. Name a "
            'tensor in model_fn with kte.identity(x, name="...") and pass that '
            "name; for a variable pass its `path`."
        )


def refuse_feed(argument: str, feed: Any) -> None:
    """Refuses values to feed.

    Args:
        argument: What to call them in an error.
        feed: What was given; empty is all right.

    Raises:
        ValueError: Something was given.

    Example:

    >>> from keras_tpu_estimator.hooks.fetches import refuse_feed
    >>> refuse_feed("feed_dict", None)
    """
    if feed:
        raise ValueError(
            f"`{argument}` should be None. Received: {reprlib.repr(feed)}. "
            f"{_NO_FEED}"
        )
