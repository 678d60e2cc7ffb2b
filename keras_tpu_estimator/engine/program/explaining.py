"""Notes to errors inside a `model_fn`: what keys and inputs there are."""

import contextlib
import traceback
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from keras_tpu_estimator.engine.inputs.unbatched import named_leaves
from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.suggestions import did_you_mean
from keras_tpu_estimator.ground.base.types import Features
from keras_tpu_estimator.ground.base.types import Labels

_LAYERS = ("keras", "jax")
_MOST_INPUTS = 12


@contextlib.contextmanager
def explained(
    features: Features, labels: Labels, params: Any
) -> Iterator[None]:
    """Adds notes to errors in a `with` block that calls a `model_fn`.

    A missing key is told what keys there are; an error in a layer or an
    operation is told which inputs `model_fn` was given.

    Args:
        labels: Nest of tensors, or `None`.
        params: The user's hyperparameters.
    """
    try:
        yield
    except KeyError as error:
        nests = {"features": features, "labels": labels, "params": params}
        for note in _about_keys(error, nests):
            error.add_note(note)
        raise
    except (TypeError, ValueError) as error:
        if _is_of_layer(error):
            error.add_note(f"model_fn was given {inputs(features, labels)}.")
        raise


def inputs(features: Features, labels: Labels) -> str:
    """Names, dtypes and shapes of what a `model_fn` is given.

    Example:

    >>> import numpy as np
    >>> inputs({"x": np.zeros((8, 3), "float32")}, None)
    "features['x']: float32 of shape (8, 3)"
    """
    told = [
        f"{name}: {shown(leaf)}"
        for name, leaf in named_leaves(features, labels)
    ]
    if len(told) > _MOST_INPUTS:
        told[_MOST_INPUTS:] = [f"and {len(told) - _MOST_INPUTS} more"]
    return ", ".join(told)


def _about_keys(error: KeyError, nests: Mapping[str, Any]) -> list[str]:
    """What the mappings have that may have been asked for a missing key."""
    key = error.args[0] if error.args else None
    told = {
        name: (nest, did_you_mean(key, nest))
        for name, nest in nests.items()
        if isinstance(nest, Mapping)
        and isinstance(key, str)
        and key not in nest
    }
    likely = {name: found for name, found in told.items() if found[1]}
    return [
        f"`{name}` has no {key!r}, but {sorted(nest, key=str)}.{question}"
        for name, (nest, question) in (likely or told).items()
    ]


def _is_of_layer(error: Exception) -> bool:
    """Whether an error comes from inside Keras or JAX."""
    return any(
        frame.f_globals.get("__name__", "").split(".")[0] in _LAYERS
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )
