"""Results of an `input_fn` of `tf.estimator.Estimator` besides arrays."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

# The feature of an input without tensors. It makes the steps of a call, and
# no `model_fn` sees it.
_STEP = "keras_tpu_estimator/step"
# Begins integer keys beside strings, because JAX sorts the keys of a dict.
_NUMBER = "keras_tpu_estimator/number/"


def with_features(returned: Any) -> Any:
    """Returns features and labels as arrays, at least one among them.

    Args:
        returned: The value of an `input_fn`. Features and labels may be or
            hold numbers and lists of numbers, or nothing.
    """
    if isinstance(returned, Mapping):
        return _arrays(_sortable(returned))
    if not isinstance(returned, tuple) or len(returned) != 2:
        return returned
    features, labels = returned
    if isinstance(features, Mapping):
        features = _sortable(features)
    if not jax.tree.leaves((features, labels)):
        return {_STEP: np.zeros([1], "float32")}, None
    return _arrays(features), _arrays(labels)


def own_features(features: Any) -> Any:
    """Returns the features that an `input_fn` returned."""
    if not isinstance(features, Mapping):
        return features
    if _STEP in features:
        return {}
    if not any(str(key).startswith(_NUMBER) for key in features):
        return features
    return {_own_key(key): each for key, each in features.items()}


def _sortable(features: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Features with strings as keys, if there are also integers."""
    if {type(key) for key in features} != {int, str}:
        return features
    return {
        f"{_NUMBER}{key}" if isinstance(key, int) else key: each
        for key, each in features.items()
    }


def _own_key(key: str) -> str | int:
    """Returns the key for which `_sortable` made a string."""
    number = key.removeprefix(_NUMBER)
    return key if number == key else int(number)


def _arrays(value: Any) -> Any:
    """Numbers and lists of them as the arrays that TensorFlow makes."""
    import tensorflow as tf

    if isinstance(value, Mapping):
        return {key: _arrays(each) for key, each in value.items()}
    is_plain = isinstance(value, list | int | float)
    leaves = jax.tree.leaves(value) if is_plain else []
    if leaves and all(isinstance(each, int | float) for each in leaves):
        return tf.make_ndarray(tf.make_tensor_proto(value))
    return value
