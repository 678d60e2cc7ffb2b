"""What is said of what a checkpoint does not have, or has no longer."""

import difflib
import os

from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.ground.base.types import PathLike


class VariableNotFoundError(KeyError):
    """A checkpoint has no variable with the requested name.

    Args:
        message: The requested name, and the names in the checkpoint.

    Example:

    >>> from keras_tpu_estimator.errors import VariableNotFoundError
    >>> try:
    ...     raise VariableNotFoundError("no 'kernel'")
    ... except KeyError as error:
    ...     print(error)
    no 'kernel'
    """

    def __str__(self) -> str:
        # `KeyError` would show the message in quotes, with its quotes escaped.
        return self.args[0]


def explain_missing(
    missing: list[str],
    there: list[str],
    checkpoint_path: PathLike,
) -> str:
    """Says that variables are not there, and which have names like theirs.

    Args:
        missing: The variables that were asked for.
        there: Those that the checkpoint has.
        checkpoint_path: The checkpoint.

    Returns:
        Sentences for an error message.

    Example:

    >>> explain_missing(["biases"], ["bias", "kernel"], "/model.ckpt-20")
    "The checkpoint '/model.ckpt-20' has no variable 'biases'. Close to the
    first: 'bias'."
    """
    near = difflib.get_close_matches(missing[0], there, n=5, cutoff=0.5)
    hint = "Close to the first" if near else "Among those that it has"
    return (
        f"The checkpoint {os.fsdecode(checkpoint_path)!r} has no variable "
        f"{_listed(missing)}. {hint}: {_listed(near or there)}."
    )


def _listed(paths: list[str], limit: int = 10) -> str:
    more = len(paths) - limit
    suffix = f" and {more} more" if more > 0 else ""
    return ", ".join(map(repr, paths[:limit])) + suffix


def removed(path: str) -> ValueError:
    """An error to raise.

    Args:
        path: The checkpoint, or its main file.

    Example:

    >>> raise removed("/nowhere/model.ckpt-20")
    Traceback (most recent call last):
    ...
    ValueError: The checkpoint '/nowhere/model.ckpt-20' was there, and was
    removed or saved anew before all of it was read...
    """
    return ValueError(
        f"The checkpoint {path!r} was there, and was removed or saved anew "
        "before all of it was read. A training keeps as many as "
        "`RunConfig(keep_checkpoint_max=...)` says: read a newer one, or have "
        f"more of them kept. {location.alternatives(path)}"
    )
