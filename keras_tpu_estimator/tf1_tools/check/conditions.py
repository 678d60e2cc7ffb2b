"""What the condition of a branch is about."""

import ast
import enum
from collections.abc import Iterator

# How programs name the mode, and what else stands in a comparison with it.
_MODES = {"is_training", "mode", "training"}
_BESIDE = {
    "EVAL",
    "INFER",
    "ModeKeys",
    "PREDICT",
    "TRAIN",
    "contrib",
    "estimator",
    "learn",
    "model_fn",
    "params",
    "self",
    "tf",
    "tf_estimator",
}


class Condition(enum.Enum):
    """What decides between the two branches.

    Attributes:
        IS_STARTED: Whether the file is the one that is run.
        MODE: The mode: a program that trains and evaluates has both.
        OTHER: A setting, say, which the source does not tell.
    """

    IS_STARTED = "is started"
    MODE = "mode"
    OTHER = "other"


def condition_of(test: ast.expr) -> Condition:
    """What a condition is about.

    Args:
        test: The condition of an `if`.

    Example:

    >>> import ast
    >>> test = ast.parse("mode == tf.estimator.ModeKeys.TRAIN").body[0].value
    >>> condition_of(test).value
    'mode'
    """
    names = {*_names(test)}
    if "__name__" in names:
        return Condition.IS_STARTED
    if names & _MODES and names <= _MODES | _BESIDE:
        return Condition.MODE
    return Condition.OTHER


def _names(test: ast.expr) -> Iterator[str]:
    for node in ast.walk(test):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value in _MODES:
                yield node.value
