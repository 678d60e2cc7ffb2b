"""Models, optimizers and metrics of Keras: what their configs do not contain."""

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from keras_tpu_estimator.base.upstream.private_names import (
    PrivateAttribute,
    PrivateName,
    UnsupportedVersionError,
    run_once_apart,
)


def _is_rate(attribute: PrivateAttribute) -> bool:
    optimizer = keras.optimizers.SGD(0.5)
    attribute.set(optimizer, lambda: 0.25)
    return bool(optimizer.learning_rate == 0.25)


_LEARNING_RATE = PrivateAttribute(
    "holds the learning rate, which may be a function",
    "keras.optimizers.Optimizer._learning_rate",
    _is_rate,
)
_UPDATED = PrivateAttribute(
    "holds the variables that an optimizer was last built for",
    "keras.optimizers.Optimizer._trainable_variables",
)
_COMPILE_CONFIG = PrivateAttribute(
    "holds the arguments of `compile`; the public config has no functions",
    "keras.Model._compile_config",
)
_FLATTEN_LAYERS = PrivateAttribute(
    "returns all layers; `layers` has only those of a model itself",
    "keras.layers.Layer._flatten_layers",
)
_METRICS_LIST = PrivateName(
    "is the class in which callbacks look for directions of metrics",
    ("keras.src.trainers.compile_utils.MetricsList",),
)
_REGISTER_NODE = PrivateName(
    "registers nodes of pytrees",
    ("keras.src.tree.tree_api.register_tree_node_class",),
)
# Callbacks read this attribute of metrics.
_DIRECTION = "_direction"
# The name of the metric that contains those of `compile`.
_COMPILE_METRICS = "compile_metrics"
# The methods by which Keras updates a model's variables when a callback reads
# `callback.model`, the newest first.
_SYNCHRONIZING = ("state_sync", "jax_state_sync")


def register_node(cls: type) -> None:
    """Registers a class with `tree_flatten` and its inverse as a node of pytrees."""
    _REGISTER_NODE.value(cls)


def updated_variables(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.Variable]:
    """Returns the variables that an optimizer was last built for."""
    return list(_UPDATED.get(optimizer))


def rate_function(
    optimizer: keras.optimizers.Optimizer,
) -> Callable[..., Any] | None:
    """Returns the function, but not a schedule, that computes the learning rate."""
    rate = _LEARNING_RATE.get(optimizer)
    schedule = keras.optimizers.schedules.LearningRateSchedule
    is_function = callable(rate) and not isinstance(rate, schedule)
    return rate if is_function else None


@contextlib.contextmanager
def at_rate(optimizer: keras.optimizers.Optimizer, rate: Any) -> Iterator[None]:
    """Sets the rate of an optimizer with a `rate_function` in a `with` block."""
    before = _LEARNING_RATE.get(optimizer)
    _LEARNING_RATE.set(optimizer, lambda: rate)
    try:
        yield
    finally:
        _LEARNING_RATE.set(optimizer, before)


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Returns `model.compile`'s arguments by name; Keras's config has no functions."""
    return dict(_COMPILE_CONFIG.get(model).config)


def layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns a model and all layers in it, outer ones first."""
    return list(_FLATTEN_LAYERS.get(model)())


def directions_of(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Returns whether metrics should rise ("up") or fall ("down"), if it is known."""
    return {
        name: getattr(metric, _DIRECTION)
        for name, metric in metrics.items()
        if hasattr(metric, _DIRECTION)
    }


def metrics_of(model: keras.Model) -> dict[str, keras.metrics.Metric]:
    """Returns the metrics of `compile` by the names that callbacks use."""
    return {
        metric.name: metric
        for group in model.metrics
        if group.name == _COMPILE_METRICS
        for metric in group.metrics
    }


def give_direction(metric: keras.metrics.Metric, direction: str) -> None:
    """Sets whether a metric should rise ("up") or fall ("down"), for callbacks."""
    setattr(metric, _DIRECTION, direction)


def directed(directions: Mapping[str, str]) -> keras.metrics.Metric:
    """Returns a metric that gives callbacks the result of `directions_of`."""
    named = [
        types.SimpleNamespace(name=name, **{_DIRECTION: direction})
        for name, direction in directions.items()
    ]
    return _directed_class()(named, name=_COMPILE_METRICS)


@functools.cache
def _directed_class() -> type[keras.metrics.Metric]:
    metrics_list: Any = _METRICS_LIST.value

    class Directed(metrics_list):
        """Metrics with a name and a direction, but without a value."""

        def reset_state(self) -> None:
            """Does nothing, because there is no state."""

        def result(self) -> dict[str, Any]:
            """Returns no values, because the logs of a step contain them."""
            return {}

    return Directed


def check_synchronization() -> None:
    """Checks once per process that a callback's `model` is updated when it is read.

    Otherwise callbacks would silently read old weights, and lose what they assign.
    """
    if run_once_apart(_synchronized) not in _SYNCHRONIZING:
        raise UnsupportedVersionError(
            "keras",
            f"keras.Model.{_SYNCHRONIZING[0]}",
            "updates the variables when a callback reads its model",
        )


def _synchronized() -> str | None:
    """Returns the method that Keras calls when a callback reads its model."""
    called: list[str] = []
    methods = {name: lambda name=name: called.append(name) for name in _SYNCHRONIZING}
    callback = keras.callbacks.Callback()
    callback.set_model(types.SimpleNamespace(**methods))
    called.clear()
    _ = callback.model
    return called[0] if called else None


def synchronize(model_of_keras: Any) -> None:
    """Calls Keras's own method that updates a model's variables.

    Args:
        model_of_keras: `super()` of a subclass of `keras.Model`.
    """
    for name in _SYNCHRONIZING:
        if hasattr(model_of_keras, name):
            getattr(model_of_keras, name)()
            return
