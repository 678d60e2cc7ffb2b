"""A model's variables in Keras weight files, by path."""

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
    """Writes variables into a file, except those of metrics."""
    for variable in variables:
        if not is_accumulator(variable):
            file[_key(variable)] = variable


def read(
    variables: Iterable[keras.Variable], file: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the values of variables in a file, by path."""
    keys = set(file.keys())
    values, missing = {}, []
    for variable in variables:
        if is_accumulator(variable):
            continue
        if _key(variable) not in keys:
            # Random layers that the file's model lacks start with new seeds.
            missing += [] if is_seed(variable) else [variable.path]
            continue
        value = file[_key(variable)]
        if tuple(value.shape) != tuple(variable.shape):
            raise ValueError(
                f"The variable {variable.path!r} must have the shape "
                f"{tuple(variable.shape)}. Received a file in which it has "
                f"{tuple(value.shape)}. Load it into a model of the same "
                "model_fn, with the same params."
            )
        values[variable.path] = value
    if missing:
        raise ValueError(
            "The file must have all variables of the model. Received one "
            f"without {missing}, but with "
            f"{sorted(map(urllib.parse.unquote, keys))}. Load a file of "
            "`save_weights` for a model of the same model_fn; to read a file "
            "of another model, call `kte.init_from_checkpoint` in model_fn."
        )
    return values


def _key(variable: keras.Variable) -> str:
    """Returns the path without slashes, which would create groups."""
    return urllib.parse.quote(variable.path, safe="")
