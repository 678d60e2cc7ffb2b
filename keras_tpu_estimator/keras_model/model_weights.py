"""A model's variables in the files of Keras, by path."""

import urllib.parse
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import MutableMapping
from typing import Any

import keras

from keras_tpu_estimator.ground.tracing.variables import is_accumulator
from keras_tpu_estimator.ground.tracing.variables import is_seed


def write(
    variables: Iterable[keras.Variable], file: MutableMapping[str, Any]
) -> None:
    """Puts variables into a file, all but what counts metrics.

    By Keras's own numbers they could be mixed up: a model knows more of them
    in mode TRAIN than in PREDICT.

    Args:
        file: A group of a file of Keras; anything like a dict.

    Example:

    >>> import keras
    >>> file = {}
    >>> write([keras.Variable(1.0, name="bias")], file)
    >>> list(file)
    ['bias']
    """
    for variable in variables:
        if not is_accumulator(variable):
            file[_key(variable)] = variable


def read(
    variables: Iterable[keras.Variable], file: Mapping[str, Any]
) -> dict[str, Any]:
    """The values that a file has of variables.

    Args:
        file: What `write` has filled.

    Returns:
        Arrays by path.

    Raises:
        ValueError: A variable is not in the file, or has another shape there.
    """
    keys = set(file.keys())
    values, missing = {}, []
    for variable in variables:
        if is_accumulator(variable):
            continue
        if _key(variable) not in keys:
            # Random layers that the file's model did not have draw anew.
            missing += [] if is_seed(variable) else [variable.path]
            continue
        value = file[_key(variable)]
        if tuple(value.shape) != tuple(variable.shape):
            raise ValueError(
                f"The variable {variable.path!r} should have the shape "
                f"{tuple(variable.shape)}. Received a file in which it has "
                f"{tuple(value.shape)}. Load it into a model of the same "
                "model_fn, with the same params."
            )
        values[variable.path] = value
    if missing:
        raise ValueError(
            "The file should have all variables of the model. Received one "
            f"without {missing}, but with "
            f"{sorted(map(urllib.parse.unquote, keys))}. Load what "
            "`save_weights` wrote for a model of the same model_fn; a file of "
            "another model is read by `kte.init_from_checkpoint` in model_fn."
        )
    return values


def _key(variable: keras.Variable) -> str:
    """The path as a name without slashes, which would make groups."""
    return urllib.parse.quote(variable.path, safe="")
