"""Copies of Keras models, with separate variables."""

import contextlib
import itertools
import pickle
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.base.common.shown import shortened
from keras_tpu_estimator.base.common.types import TensorLike
from keras_tpu_estimator.base.upstream import (
    keras_configs,
    keras_models,
    keras_variables,
)
from keras_tpu_estimator.base.upstream.keras_configs import kept_functions

# The variables of a copy, by the original variables.
_Pairs: TypeAlias = list[tuple[keras.Variable, keras.Variable]]
# Paths of variables without a name in a layer or its random generator.
_COUNTED = re.compile(
    r"(?P<name>(?:.*/)?(?:variable|seed_generator))(?:_[0-9]+)?"
    r"(?P<rest>(?:/seed_generator_state)?)"
)


def copied(model: keras.Model) -> keras.Model:
    """Returns a copy of the model with the same values, on the host."""
    copy, pairs = _copy_of(model)
    for to, variable in pairs:
        to.assign(variable.value)
    _take_moments(copy)
    keep_on_host(copy)
    return copy


def keep_on_host(model: keras.Model) -> None:
    """Moves a model's variables to arrays on the host, which are never donated, unlike
    those of a model in Keras's `fit`.
    """
    for variable in _variables_of(model):
        keras_variables.hold(variable, np.array(variable.value))


def with_values(model: keras.Model, values: Mapping[str, TensorLike]) -> keras.Model:
    """Returns a copy of the model with other values by the paths of its variables.

    States of random layers may be missing. Only values that no program has, such as
    those that `adapt` computed, are copied from the model.
    """
    copy, pairs = _copy_of(model)
    weights = {variable.path for variable in model.weights}
    missing = weights & {v.path for v in model.trainable_variables}
    missing -= values.keys()
    if missing:
        raise ValueError(
            "The checkpoint must have all weights of the Keras model "
            f"{model.name!r} for prediction. Received none for "
            f"{sorted(missing)}. Remove unused layers."
        )
    for to, variable in pairs:
        if variable.path in values:
            to.assign(values[variable.path])
        elif variable.path in weights:
            to.assign(jnp.array(variable.value))
    _take_moments(copy)
    return copy


def _take_moments(model: keras.Model) -> None:
    """Updates adapted layers to their current moments."""
    for layer in keras_models.layers_of(model):
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def paths_of(model: keras.Model) -> list[str]:
    """Returns the paths of a model's variables for pickling, or raises
    `pickle.PicklingError` if Keras would pickle a different model.
    """
    for layer in keras_models.layers_of(model):
        if getattr(layer, "lora_enabled", False):
            raise pickle.PicklingError(
                f"The Keras model {model.name!r} must not have LoRA, which "
                f"Keras does not pickle. Received LoRA in {layer.path!r}. "
                "Call from_keras in the process that uses the estimator."
            )
    return [variable.path for variable in _variables_of(model)]


def give_paths(model: keras.Model, paths: Sequence[str]) -> None:
    """Restores the paths of the variables of a pickled model."""
    for variable, path in zip(_variables_of(model), paths, strict=True):
        keras_variables.set_path(variable, path)


def _copy_of(model: keras.Model) -> tuple[keras.Model, _Pairs]:
    """Returns a copy with initial values, and its variables."""
    with _explained(model), _not_compiled(model), kept_functions() as functions:
        copy = keras_configs.from_own_config(model, functions)
        # Some KerasHub classes compile themselves.
        copy.compiled = False
        _configure_alike(copy, model)
    pairs = _pairs(copy, model)
    paths = _distinct(_without_counts([variable.path for _, variable in pairs]))
    for (to, variable), path in zip(pairs, paths, strict=True):
        to.trainable = variable.trainable
        # A layer that is built before the model contains it has another path.
        keras_variables.set_path(to, path)
    return copy, pairs


def _without_counts(paths: Sequence[str]) -> list[str]:
    """Returns paths in which unnamed objects are numbered within each layer."""
    counts = Counter[tuple[str, str]]()
    stable = []
    for path in paths:
        if match := _COUNTED.fullmatch(path):
            name, ending = match["name"], match["rest"]
            count = counts[name, ending]
            counts[name, ending] += 1
            path = f"{name}_{count}{ending}" if count else name + ending
        stable.append(path)
    return stable


def _distinct(paths: Sequence[str]) -> list[str]:
    """Returns paths in which layers of one name inside another layer are numbered."""
    counts, used = Counter[str](), {*paths}
    distinct = []
    for path in paths:
        earlier = counts[path]
        counts[path] += 1
        if earlier:
            layer, slash, name = path.rpartition("/")
            front, back = (layer, slash + name) if layer else (name, "")
            numbered = (f"{front}_{n}{back}" for n in itertools.count(earlier))
            path = next(candidate for candidate in numbered if candidate not in used)
            used.add(path)
        distinct.append(path)
    return distinct


def _configure_alike(copy: keras.Model, model: keras.Model) -> None:
    """Repeats changes to inner layers after building, which a layer's config does not
    contain.
    """
    layers = map(keras_models.layers_of, (copy, model))
    for to, layer in zip(*layers, strict=False):
        if to.trainable != layer.trainable:
            to.trainable = layer.trainable
        if getattr(layer, "lora_enabled", False):
            if not to.lora_enabled:
                to.enable_lora(layer.lora_rank)
            # Keras loses this setting when it builds a layer from its config.
            to.lora_alpha = layer.lora_alpha


def _pairs(copy: keras.Model, model: keras.Model) -> _Pairs:
    """Returns the variables of a copy, paired with the original ones in order, because
    layers without an explicit name have another name in a copy.
    """
    pairs = []
    for to, variable in itertools.zip_longest(
        _variables_of(copy), _variables_of(model)
    ):
        if to is None or variable is None or _kind(to) != _kind(variable):
            raise ValueError(
                f"The Keras model {model.name!r} cannot be copied. Expected "
                "its config to make a model with the same variables. "
                f"Received one with {_described(to)}, where this one has "
                f"{_described(variable)}. Make the `get_config` of its layers "
                "complete, use each layer in one model only, or write a "
                "model_fn that uses the model."
            )
        pairs.append((to, variable))
    return pairs


def _variables_of(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables of a model, without those of its metrics."""
    of_metrics = {id(variable) for variable in model.metrics_variables}
    return [variable for variable in model.variables if id(variable) not in of_metrics]


def _kind(variable: keras.Variable) -> tuple[object, ...]:
    # An automatic name contains a number, which differs in the copy.
    name = re.sub(r"^variable(_\d+)?$", "variable", variable.name)
    return name, variable.shape, variable.dtype


def _described(variable: keras.Variable | None) -> str:
    if variable is None:
        return "none"
    return f"{variable.path!r} of shape {tuple(variable.shape)}"


@contextlib.contextmanager
def _explained(model: keras.Model) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Keras's message contains the full config.
        first = _first_of(error)
        raise ValueError(
            f"The Keras model {model.name!r} cannot be copied. Expected "
            "layers and classes with a `get_config` that has all arguments "
            f"of their constructor. Received {type(first).__name__}: "
            f"{shortened(str(first))} Write a model_fn that uses the model."
        ) from error


def _first_of(error: BaseException) -> BaseException:
    """Returns the first error in a chain of causes."""
    while error.__context__ is not None:
        error = error.__context__
    return error


@contextlib.contextmanager
def _not_compiled(model: keras.Model) -> Iterator[None]:
    """Prevents Keras from copying the functions of `compile`, which have no config."""
    compiled, model.compiled = model.compiled, False
    try:
        yield
    finally:
        model.compiled = compiled
