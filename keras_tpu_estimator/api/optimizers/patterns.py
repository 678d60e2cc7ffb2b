"""Regular expressions that exclude variables."""

import re
from collections.abc import Iterable

import keras

from keras_tpu_estimator.base.common.shown import shown


def checked(argument: str, patterns: Iterable[str] | None) -> list[str]:
    """Returns a user's regular expressions as a checked list."""
    if isinstance(patterns, str):
        raise TypeError(
            f"`{argument}` must be a list of regular expressions. Received: "
            f"{patterns!r}. Write [{patterns!r}]."
        )
    found = list(patterns or ())
    for pattern in found:
        if not isinstance(pattern, str):
            raise TypeError(
                f"`{argument}` must contain regular expressions as str. "
                f"Received: {shown(pattern)}. To exclude a variable, pass its "
                "`path`."
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"`{argument}` must contain regular expressions. Received: "
                f"{pattern!r}, which is invalid: {error}. Escape it with "
                "re.escape if it is a name."
            ) from error
    return found


def match(patterns: Iterable[str], variable: keras.Variable) -> bool:
    """Returns whether a variable's path contains a match of a pattern."""
    return any(re.search(pattern, variable.path) for pattern in patterns)
