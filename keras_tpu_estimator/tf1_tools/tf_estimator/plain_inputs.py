"""Results of an `input_fn` of `tf.estimator.Estimator` besides arrays."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

# The feature of an input without tensors. It makes the steps of a call, and
# no `model_fn` sees it.
_STEP = "keras_tpu_estimator/step"


def with_features(returned: Any) -> Any:
    """Returns features and labels as arrays, at least one among them.

    Args:
        returned: The value of an `input_fn`. Features and labels may be or
            hold numbers and lists of numbers, or nothing.
    """
    if isinstance(returned, Mapping):
        return _arrays(returned)
    if not isinstance(returned, tuple) or len(returned) != 2:
        return returned
    if not jax.tree.leaves(returned):
        return {_STEP: np.zeros([1], "float32")}, None
    return tuple(map(_arrays, returned))


def own_features(features: Any) -> Any:
    """Returns the features that an `input_fn` returned."""
    if isinstance(features, Mapping) and _STEP in features:
        return {}
    return features


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
