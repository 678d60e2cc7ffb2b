"""Copies of Keras models, on variables of their own."""

import contextlib
import itertools
import pickle
import re
from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TypeAlias

import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.ground.base.shown import shortened
from keras_tpu_estimator.ground.base.types import TensorLike
from keras_tpu_estimator.ground.tracing import keras_internals
from keras_tpu_estimator.ground.tracing.kept_functions import kept

# Each variable of a copy with the one that it is a copy of.
_Pairs: TypeAlias = list[tuple[keras.Variable, keras.Variable]]
# Paths of what a layer, or its generator of random numbers, gives no name.
_COUNTED = re.compile(
    r"(?P<name>(?:.*/)?(?:variable|seed_generator))(?:_[0-9]+)?"
    r"(?P<rest>(?:/seed_generator_state)?)"
)


def copied(model: keras.Model) -> keras.Model:
    """A model like this one, with the same values, on the host.

    Raises:
        ValueError: It cannot be copied.
    """
    copy, pairs = _copy_of(model)
    for to, variable in pairs:
        to.assign(variable.value)
    _take_moments(copy)
    keep_on_host(copy)
    return copy


def keep_on_host(model: keras.Model) -> None:
    """Gives a model's variables arrays that take up no device memory.

    Nothing donates them either, as Keras's `fit` donates those of its model.
    """
    for variable in _own(model):
        keras_internals.hold(variable, np.array(variable.value))


def with_values(
    model: keras.Model, values: Mapping[str, TensorLike]
) -> keras.Model:
    """A model like this one, with other values.

    Args:
        model: The model, of whose own values only those are read that no
            program has, such as what a layer was adapted to.
        values: Values by the paths that variables have in this model. What
            random layers draw from may be missing.

    Raises:
        ValueError: One is missing, or the model cannot be copied.
    """
    copy, pairs = _copy_of(model)
    weights = {variable.path for variable in model.weights}
    missing = weights & {v.path for v in model.trainable_variables}
    missing -= values.keys()
    if missing:
        raise ValueError(
            f"The checkpoint should have all weights of the Keras model "
            f"{model.name!r} that it predicts with. Received none for "
            f"{sorted(missing)}. Remove layers that are not used."
        )
    for to, variable in pairs:
        if variable.path in values:
            to.assign(values[variable.path])
        elif variable.path in weights:
            to.assign(jnp.array(variable.value))
    _take_moments(copy)
    return copy


def _take_moments(model: keras.Model) -> None:
    """Has layers that are adapted use the moments that they have now."""
    for layer in keras_internals.layers_of(model):
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def paths_of(model: keras.Model) -> list[str]:
    """The paths of a model's variables, for when it is pickled.

    Raises:
        pickle.PicklingError: Keras would pickle another model.
    """
    for layer in keras_internals.layers_of(model):
        if getattr(layer, "lora_enabled", False):
            raise pickle.PicklingError(
                f"The Keras model {model.name!r} has LoRA in {layer.path!r}, "
                "which Keras does not pickle. Expected a model without it. "
                "Make the estimator by from_keras where it is to be used."
            )
    return [variable.path for variable in _own(model)]


def give_paths(model: keras.Model, paths: Sequence[str]) -> None:
    """Gives the variables of a model that was pickled their paths again."""
    for variable, path in zip(_own(model), paths, strict=True):
        keras_internals.set_path(variable, path)


def _copy_of(model: keras.Model) -> tuple[keras.Model, _Pairs]:
    """A copy with initial values, and its variables beside the model's."""
    with _explained(model), _not_compiled(model), kept() as functions:
        copy = keras_internals.from_own_config(model, functions)
        # Some classes of KerasHub compile themselves.
        copy.compiled = False
        _configure_alike(copy, model)
    pairs = _pairs(copy, model)
    paths = _without_counts([variable.path for _, variable in pairs])
    for (to, variable), path in zip(pairs, paths, strict=True):
        to.trainable = variable.trainable
        # A layer that is built before the model has it is called otherwise.
        keras_internals.set_path(to, path)
    return copy, pairs


def _without_counts(paths: Sequence[str]) -> list[str]:
    """Paths in which what has no name is counted anew in each layer.

    Keras counts it in the process, so that a model that is built once more has
    other paths than its checkpoint.

    Example:

    >>> _without_counts(["head/kernel", "head/variable_7", "head/variable_8"])
    ['head/kernel', 'head/variable', 'head/variable_1']
    """
    seen = Counter[tuple[str, str]]()
    stable = []
    for path in paths:
        if match := _COUNTED.fullmatch(path):
            name, rest = match["name"], match["rest"]
            count = seen[name, rest]
            seen[name, rest] += 1
            path = f"{name}_{count}{rest}" if count else name + rest
        stable.append(path)
    return stable


def _configure_alike(copy: keras.Model, model: keras.Model) -> None:
    """Does to the layers of a copy what was done to the model's once built.

    The config of a layer says nothing of what was done to layers inside it.
    """
    layers = map(keras_internals.layers_of, (copy, model))
    for to, layer in zip(*layers, strict=False):
        if to.trainable != layer.trainable:
            to.trainable = layer.trainable
        if getattr(layer, "lora_enabled", False):
            if not to.lora_enabled:
                to.enable_lora(layer.lora_rank)
            # Keras forgets it when it builds a layer of a config.
            to.lora_alpha = layer.lora_alpha


def _pairs(copy: keras.Model, model: keras.Model) -> _Pairs:
    """The variables of a copy, each with its counterpart.

    By their order, as layers without a name of their own are called otherwise
    in a copy.

    Raises:
        ValueError: One has no counterpart.
    """
    pairs = []
    for to, variable in itertools.zip_longest(_own(copy), _own(model)):
        if to is None or variable is None or _kind(to) != _kind(variable):
            raise ValueError(
                f"The Keras model {model.name!r} cannot be copied. Expected "
                "its config to make a model with the same variables. Received "
                f"one with {_described(to)}, where this one has "
                f"{_described(variable)}. Have the `get_config` of its layers "
                "say all that they make, and each layer belong to one model, "
                "or write a model_fn that uses the model instead."
            )
        pairs.append((to, variable))
    return pairs


def _own(model: keras.Model) -> list[keras.Variable]:
    """The variables of a model without those of its metrics."""
    of_metrics = {id(variable) for variable in model.metrics_variables}
    return [each for each in model.variables if id(each) not in of_metrics]


def _kind(variable: keras.Variable) -> tuple[object, ...]:
    # Without a name of its own it is called by how many there were before.
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
        # Keras shows the whole config around it.
        first = _first_of(error)
        raise ValueError(
            f"The Keras model {model.name!r} cannot be copied. Expected one "
            "whose layers and classes have a `get_config` with all arguments "
            f"of their constructor. Received {type(first).__name__}: "
            f"{shortened(str(first))} "
            "Write a model_fn that uses the model instead."
        ) from error


def _first_of(error: BaseException) -> BaseException:
    """The error that this one, or one before it, was raised for."""
    while error.__context__ is not None:
        error = error.__context__
    return error


@contextlib.contextmanager
def _not_compiled(model: keras.Model) -> Iterator[None]:
    """Has Keras copy a model alone, since functions have no config."""
    compiled, model.compiled = model.compiled, False
    try:
        yield
    finally:
        model.compiled = compiled
