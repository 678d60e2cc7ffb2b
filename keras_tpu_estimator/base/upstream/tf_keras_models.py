"""Compiled models of tf-keras, and of TensorFlow's copy of it, in other graphs."""

import warnings
from typing import Any

from keras_tpu_estimator.base.upstream.private_names import (
    PrivateAttribute,
    PrivateName,
)

_CLONE = PrivateName(
    "clones a model with the arguments of its `compile`",
    ("tf_keras.__internal__.models.clone_and_build_model",),
)
_CLONE_OF_TENSORFLOW = PrivateName(
    "clones a model of TensorFlow's own copy of Keras",
    ("tensorflow.python.keras.models.clone_and_build_model",),
)
_BACKEND_OF_TENSORFLOW = PrivateName(
    "is the backend of this copy", ("tensorflow.python.keras.backend",)
)
_IS_GRAPH = PrivateAttribute(
    "is true for functional and built sequential models",
    "tf_keras.Model._is_graph_network",
)
_SET_WEIGHTS = PrivateAttribute(
    "weights the losses and metrics of a compiled model",
    "tf_keras.Model._compile_weights_loss_and_weighted_metrics",
)
_METRICS = PrivateAttribute(
    "holds the metrics of `compile` as they were passed",
    "tf_keras.Model._compile_metrics",
)
_METRIC_OBJECTS = PrivateAttribute(
    "holds the metrics of `compile` as objects",
    "tf_keras.Model._compile_metric_functions",
)


def is_of_tensorflow(model: Any) -> bool:
    """Returns whether a model is one of TensorFlow's own copy of Keras."""
    modules = (base.__module__ for base in type(model).__mro__)
    return any(module.startswith("tensorflow.python.keras") for module in modules)


def is_functional(model: Any) -> bool:
    """Returns whether a model is functional, or sequential with a known input."""
    return bool(_IS_GRAPH.get(model))


def cloned(model: Any, is_training: bool, **options: Any) -> Any:
    """Returns a clone in the current graph.

    Args:
        model: The model.
        is_training: Whether layers such as dropout behave as in training.
        **options: The arguments of `clone_and_build_model`.
    """
    if is_of_tensorflow(model):
        clone, backend = _CLONE_OF_TENSORFLOW.value, _BACKEND_OF_TENSORFLOW.value
    else:
        import tf_keras

        clone, backend = _CLONE.value, tf_keras.backend
    # The function warns that it is deprecated.
    with warnings.catch_warnings(action="ignore"):
        backend.set_learning_phase(is_training)
    return clone(model, **options)


def set_sample_weights(model: Any, weights: list[Any]) -> None:
    """Weights the losses and metrics of a compiled model.

    Args:
        model: The model.
        weights: The weights of each output.
    """
    _SET_WEIGHTS.get(model)(weights)


def metrics_of(model: Any) -> tuple[Any, list[Any]]:
    """Returns the metrics of `compile`, as they were passed and as objects."""
    return _METRICS.get(model), _METRIC_OBJECTS.get(model)
