"""Notes to errors inside a `model_fn`: what keys and inputs there are."""

import contextlib
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from keras_tpu_estimator.engine.inputs.unbatched import named_leaves
from keras_tpu_estimator.ground.base.shown import shown, some
from keras_tpu_estimator.ground.base.suggestions import did_you_mean
from keras_tpu_estimator.ground.base.types import Features, Labels

_LAYERS = ("keras", "jax")
_MOST_KEYS = 12
# What libraries call the labels among the columns of a batch.
_LABELS = ("label", "labels", "target", "targets")


@contextlib.contextmanager
def explained(features: Features, labels: Labels, params: Any) -> Iterator[None]:
    """Adds notes to errors in a `with` block that calls a `model_fn`.

    A missing key is told what keys there are; an error in a layer or an
    operation is told which inputs `model_fn` was given; and one about `None`,
    that the labels are among the features.

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
    except (AttributeError, TypeError, ValueError) as error:
        if labels is None and "None" in str(error):
            _note_labels(error, features)
        if not isinstance(error, AttributeError) and _is_of_layer(error):
            error.add_note(f"model_fn was given {inputs(features, labels)}.")
        raise


def inputs(features: Features, labels: Labels) -> str:
    """Names, dtypes and shapes of what a `model_fn` is given.

    Example:

    >>> import numpy as np
    >>> inputs({"x": np.zeros((8, 3), "float32")}, None)
    "features['x']: float32 of shape (8, 3)"
    """
    return some(
        [f"{name}: {shown(leaf)}" for name, leaf in named_leaves(features, labels)]
    )


def _note_labels(error: Exception, features: Features) -> None:
    names = features if isinstance(features, Mapping) else {}
    for name in filter(names.__contains__, _LABELS):
        error.add_note(
            f"`labels` is None, and {name!r} is one of the features: input_fn "
            "should give pairs. Return ((batch, batch.pop("
            f"{name!r})) for batch in batches), or use features[{name!r}]."
        )


def _about_keys(error: KeyError, nests: Mapping[str, Any]) -> list[str]:
    """What the mappings have that may have been asked for a missing key."""
    key = error.args[0] if error.args else None
    told = {
        name: (nest, did_you_mean(key, nest))
        for name, nest in nests.items()
        if isinstance(nest, Mapping) and isinstance(key, str) and key not in nest
    }
    likely = {name: found for name, found in told.items() if found[1]}
    return [
        f"`{name}` has no {key!r}, but "
        f"[{some(sorted(map(repr, nest)), _MOST_KEYS)}].{question}"
        for name, (nest, question) in (likely or told).items()
    ]


def _is_of_layer(error: Exception) -> bool:
    """Whether an error comes from inside Keras or JAX."""
    return any(
        frame.f_globals.get("__name__", "").split(".")[0] in _LAYERS
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )
