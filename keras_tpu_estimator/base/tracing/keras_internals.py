"""All private values of Keras that this package reads or sets, one function each.

`keras_patches.py` has the functions of Keras that are replaced.
`tests/tracing/test_keras_internals.py` fails when Keras changes any of them.
"""

import contextlib
import contextvars
import random
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
from keras.src import api_export
from keras.src.backend.common import global_state, masking
from keras.src.backend.common.name_scope import current_path
from keras.src.random import seed_generator
from keras.src.saving.serialization_lib import ObjectSharingScope
from keras.src.trainers import compile_utils
from keras.src.tree import tree_api


class _CountsByScope(dict[Any, int]):
    """The number of taken names by kind and name scope; Keras counts only by name."""

    def __init__(self, taken: Mapping[str, int]):
        super().__init__({("", name): n for name, n in taken.items()})

    def __contains__(self, name: object) -> bool:
        return super().__contains__((current_path(), name))

    def __getitem__(self, name: str) -> int:
        return self.get((current_path(), name), 0)

    def __setitem__(self, name: str, count: int) -> None:
        super().__setitem__((current_path(), name), count)

    def reset(self) -> None:
        """Forgets the counts in and below the current scope."""
        path = current_path()
        for scope, name in list(self):
            if scope == path or scope.startswith(f"{path}/"):
                del self[scope, name]


def restart_names() -> None:
    """Restarts automatic names in the current name scope, if each scope has counts."""
    counts = global_state.get_global_attribute("object_name_uids")
    if isinstance(counts, _CountsByScope):
        counts.reset()


@contextlib.contextmanager
def fresh_names(taken: Mapping[str, int] | None = None) -> Iterator[None]:
    """Restarts Keras's automatic names in a `with` block, except taken ones.

    The first `Dense` of each name scope is called `dense` again, whatever the process
    built before. Uninitialized variables are forgotten at the end.
    """
    saved = {
        name: global_state.get_global_attribute(name)
        for name in ("object_name_uids", "uninitialized_variables")
    }
    global_state.set_global_attribute("object_name_uids", _CountsByScope(taken or {}))
    global_state.set_global_attribute("uninitialized_variables", [])
    try:
        yield
    finally:
        for name, value in saved.items():
            global_state.set_global_attribute(name, value)


def name_path() -> str:
    """Returns the path of the current name scopes."""
    path: str = current_path()
    return path


def default_seed() -> int:
    """Returns a seed as Keras chooses it."""
    seed: int = seed_generator.make_default_seed()
    return seed


class _DefaultSeeds:
    """The replacement of Python's `random` in Keras, with one generator per context."""

    current: contextvars.ContextVar[Any] = contextvars.ContextVar(
        "default_seeds", default=random
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current.get(), name)


@contextlib.contextmanager
def default_seeds(generator: random.Random) -> Iterator[None]:
    """Makes Keras draw this context's default seeds from a generator in a block."""
    # Keras draws them from Python's global generator.
    seed_generator.python_random = _DefaultSeeds()
    token = _DefaultSeeds.current.set(generator)
    try:
        yield
    finally:
        _DefaultSeeds.current.reset(token)


def register_node(cls: type) -> None:
    """Registers a class with `tree_flatten` and its inverse as a node of pytrees."""
    tree_api.register_tree_node_class(cls)


def stored_dtype(variable: keras.Variable) -> str:
    """Returns the dtype in which a variable is stored, despite autocast scopes."""
    return variable._dtype


def hold(variable: keras.Variable, value: Any) -> None:
    """Sets the array of a variable, which may have any shape."""
    variable._value = value


def has_value(variable: keras.Variable) -> bool:
    """Returns whether a variable has an array, which Keras's `fit` removes."""
    return variable._value is not None


def set_path(variable: keras.Variable, path: str) -> None:
    """Sets the path of a variable."""
    variable._path = path


def updated_variables(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.Variable]:
    """Returns the variables that an optimizer was last built for."""
    return list(optimizer._trainable_variables)


def current_layout_map() -> keras.distribution.LayoutMap | None:
    """Returns the layout map of the current distribution, if it has one."""
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, keras.distribution.ModelParallel):
        return None
    return distribution._layout_map


@contextlib.contextmanager
def without_distribution() -> Iterator[None]:
    """Disables Keras's distribution in a `with` block.

    A distribution would put new variables on devices, and shard outputs of layers by
    the rules for variables.
    """
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)


def rate_function(
    optimizer: keras.optimizers.Optimizer,
) -> Callable[..., Any] | None:
    """Returns the function, but not a schedule, that computes the learning rate."""
    rate = optimizer._learning_rate
    schedule = keras.optimizers.schedules.LearningRateSchedule
    is_function = callable(rate) and not isinstance(rate, schedule)
    return rate if is_function else None


@contextlib.contextmanager
def at_rate(optimizer: keras.optimizers.Optimizer, rate: Any) -> Iterator[None]:
    """Sets the rate of an optimizer with a `rate_function` in a `with` block."""
    before = optimizer._learning_rate
    optimizer._learning_rate = lambda: rate
    try:
        yield
    finally:
        optimizer._learning_rate = before


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Returns `model.compile`'s arguments by name; Keras's config has no functions."""
    return dict(model._compile_config.config)


def layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns a model and all layers in it, outer ones first."""
    return list(model._flatten_layers())


def from_own_config(model: keras.Model, functions: Mapping[str, Any]) -> keras.Model:
    """Returns a model with new variables, made from the config of a model.

    As in a file, an object that several layers share remains one object; `clone_model`
    makes several. The functions are those in the config by name, and may be added
    during the call.
    """
    with ObjectSharingScope():
        config = keras.saving.serialize_keras_object(model)
    classes = {type(each).__name__: type(each) for each in layers_of(model)}
    with ObjectSharingScope(), keras.saving.custom_object_scope(functions):
        # This is safe, because the config comes from this process.
        return keras.saving.deserialize_keras_object(
            config, custom_objects=classes, safe_mode=False
        )


def is_of_keras(function: Any) -> bool:
    """Returns whether Keras finds a function by its name."""
    if api_export.get_name_from_symbol(function) is not None:
        return True
    module = getattr(function, "__module__", None) or ""
    is_inner = "<" in getattr(function, "__qualname__", "<")
    return module.partition(".")[0] == "keras" and not is_inner


def mask_of(tensor: Any) -> Any:
    """Returns the mask of a tensor, or `None`."""
    return masking.get_keras_mask(tensor)


def with_mask(tensor: Any, mask: Any) -> Any:
    """Returns a copy of a tensor with a mask, or without one for `None`."""
    tensor = keras.ops.copy(tensor)
    if mask is not None:
        masking.set_keras_mask(tensor, mask)
    return tensor


def directions_of(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Returns whether metrics should rise ("up") or fall ("down"), if it is known."""
    return {
        name: metric._direction
        for name, metric in metrics.items()
        if hasattr(metric, "_direction")
    }


def metrics_of(model: keras.Model) -> dict[str, keras.metrics.Metric]:
    """Returns the metrics of `compile` by the names that callbacks use."""
    return {
        metric.name: metric
        for each in model.metrics
        if isinstance(each, compile_utils.CompileMetrics)
        for metric in each.metrics
    }


def give_direction(metric: keras.metrics.Metric, direction: str) -> None:
    """Sets whether a metric should rise ("up") or fall ("down"), for callbacks."""
    metric._direction = direction


class _Directed(compile_utils.MetricsList):
    """Metrics with a name and a direction, but without a value."""

    def reset_state(self) -> None:
        """Does nothing, because there is no state."""

    def result(self) -> dict[str, Any]:
        """Returns no values, because the logs of a step contain them."""
        return {}


def directed(directions: Mapping[str, str]) -> keras.metrics.Metric:
    """Returns a metric that gives callbacks the result of `directions_of`."""
    named = [
        types.SimpleNamespace(name=name, _direction=direction)
        for name, direction in directions.items()
    ]
    return _Directed(named, name="compile_metrics")
