"""Places in the user's code that a traced operation comes from."""

import traceback
from typing import Any, NamedTuple

from keras_tpu_estimator.ground.base.source_line import SourceLine
from keras_tpu_estimator.ground.base.user_files import is_of_user


class UserPlace(NamedTuple):
    """A line of the user's code, and the function that it is in.

    Attributes:
        line: The line.
        function: The function's name.
    """

    line: SourceLine
    function: str

    def __str__(self) -> str:
        return f"{self.line} in `{self.function}`"


def place_of(source_info: Any) -> UserPlace | None:
    """Returns the innermost place of the user that JAX has noted.

    Args:
        source_info: That of an equation.

    Example:

    >>> place_of(None) is None
    True
    """
    trace = getattr(source_info, "traceback", None)
    for frame in () if trace is None else trace.frames:
        if is_of_user(frame.file_name):
            line = SourceLine(frame.file_name, frame.line_num)
            return UserPlace(line, frame.function_name)
    return None


def place_of_error(error: BaseException) -> UserPlace | None:
    """Returns the innermost place of the user that an error went through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_of_user(frame.filename):
            line = SourceLine(frame.filename, frame.lineno or 0)
            return UserPlace(line, frame.name)
    return None
