"""Sample weights and class weights."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree

_FEATURES, _WEIGHTS = "features", "sample_weights"


def with_weights(features: Features, weights: PyTree) -> Features:
    """Returns features and sample weights as one pytree."""
    return {_FEATURES: features, _WEIGHTS: weights}


def split(features: Features) -> tuple[Features, PyTree]:
    """Returns features, and sample weights or `None`."""
    is_weighted = isinstance(features, Mapping) and (
        features.keys() == {_FEATURES, _WEIGHTS}
    )
    if is_weighted:
        return features[_FEATURES], features[_WEIGHTS]
    return features, None


def by_output(weights: PyTree, names: Sequence[str], outputs: PyTree) -> PyTree:
    """Returns sample weights in the structure of a model's outputs."""
    if not isinstance(weights, Mapping) or isinstance(outputs, Mapping):
        return weights
    if weights.keys() != set(names):
        raise ValueError(
            "Sample weights must have one entry for each output of the "
            f"model: {sorted(names)}. Received: {sorted(map(str, weights))}. "
            "Add the missing ones as arrays of ones."
        )
    ordered = [weights[name] for name in names]
    return ordered if isinstance(outputs, list | tuple) else ordered[0]


def checked(class_weight: Any) -> dict[int, float] | None:
    """Returns checked class weights, as in Keras's `fit`."""
    if class_weight is None:
        return None
    is_dict = isinstance(class_weight, Mapping)
    if not is_dict or not all(float(name) == int(name) for name in class_weight):
        raise TypeError(
            "`class_weight` must be a dict from classes, which are integers, "
            f"to weights. Received: {shown(class_weight)}. Pass a dict such "
            "as {0: 1.0, 1: 2.5}."
        )
    return {int(name): float(w) for name, w in class_weight.items()}


def by_class(
    class_weight: Mapping[int, float], labels: Labels, weights: PyTree
) -> jax.Array:
    """Returns sample weights by the classes of the labels; other classes have weight 1.

    Labels are classes of shape `[batch]` or `[batch, 1]`, or one-hot or probability
    rows, of which the largest element counts. `weights` must be `None`.
    """
    if weights is not None:
        raise ValueError(
            "With `class_weight`, the input must have no sample weights. "
            "Received both. Multiply the weights in `input_fn`, and leave "
            "`class_weight` out."
        )
    if getattr(labels, "ndim", 3) > 2:
        raise ValueError(
            "With `class_weight`, the model must have one output with one "
            f"class for each example. Received labels: {shown(labels)}. Yield "
            "(features, labels, sample_weights) from `input_fn` instead."
        )
    if labels.dtype == bool:
        labels = labels.astype(jnp.int32)
    classes = labels
    if labels.ndim == 2:
        is_column = labels.shape[1] == 1
        classes = labels[:, 0] if is_column else jnp.argmax(labels, axis=1)
    classes = jnp.round(classes).astype(jnp.int32)
    numbers = jnp.asarray([*class_weight], jnp.int32)
    dtype = keras.config.floatx()
    values = jnp.asarray([*class_weight.values()], dtype)
    matches = classes[:, None] == numbers
    return jnp.where(
        jnp.any(matches, axis=1),
        jnp.sum(jnp.where(matches, values, 0), axis=1),
        jnp.ones((), dtype),
    )
