"""Lists of regular expressions that say which variables are left out."""

import re
from collections.abc import Iterable

import keras

from keras_tpu_estimator.ground.base.shown import shown


def checked(argument: str, patterns: Iterable[str] | None) -> list[str]:
    """The regular expressions that a user gave.

    Args:
        argument: Its name, for errors.
        patterns: The regular expressions, or `None` for none.

    Raises:
        TypeError: It is a string, or holds something else.
        ValueError: One is no regular expression.

    Example:

    >>> checked("skip_list", ["bias", "gamma"])
    ['bias', 'gamma']
    """
    if isinstance(patterns, str):
        raise TypeError(
            f"`{argument}` should be a list of regular expressions. Received: "
            f"{patterns!r}. Write [{patterns!r}]."
        )
    found = list(patterns or ())
    for pattern in found:
        if not isinstance(pattern, str):
            raise TypeError(
                f"`{argument}` should hold regular expressions as str. "
                f"Received: {shown(pattern)}. Of a "
                "variable, pass its `path`."
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"`{argument}` should hold regular expressions. Received: "
                f"{pattern!r}, in which there is {error}. Escape it with "
                "re.escape if it is a name."
            ) from error
    return found


def match(patterns: Iterable[str], variable: keras.Variable) -> bool:
    """Whether a variable's path has one of some patterns in it.

    Args:
        patterns: Regular expressions.
        variable: The variable. Its path has the names of its layers, which
            its `name` has not.

    Example:

    >>> with keras.name_scope("LayerNorm"):
    ...     gamma = keras.Variable(1.0, name="gamma")
    >>> match(["LayerNorm"], gamma), match(["bias"], gamma)
    (True, False)
    """
    return any(re.search(pattern, variable.path) for pattern in patterns)
