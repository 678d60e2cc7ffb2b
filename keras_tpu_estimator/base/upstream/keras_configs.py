"""Copies of models by their configs, with the functions that a config loses."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from keras_tpu_estimator.base.upstream.keras_models import layers_of
from keras_tpu_estimator.base.upstream.private_names import PrivateName
from keras_tpu_estimator.base.upstream.replacements import (
    PropertyReplacement,
    Replacement,
)

_SHARING_SCOPE = PrivateName(
    "keeps an object that several layers share as one object",
    ("keras.src.saving.serialization_lib.ObjectSharingScope",),
)
_LOSES_FUNCTIONS = (
    "serializes functions; a config has their name or their bytecode, which lose their "
    "globals and their closure"
)


AVAILABLE = PropertyReplacement(
    PrivateName(
        "reports whether a library is installed, by importing it; each config imports "
        "TensorFlow, for seconds, to ask if values have its types",
        ("keras.src.utils.module_utils.LazyModule.available",),
    ),
)


def _function() -> None:
    """A function for checks."""


def _function_config() -> None:
    with _without_imports():
        keras.saving.serialize_keras_object(_function)


REGISTERED_NAME = Replacement(
    PrivateName(
        _LOSES_FUNCTIONS,
        ("keras.src.saving.object_registration.get_registered_name",),
    ),
    _function_config,
)
SERIALIZATIONS = tuple(
    Replacement(
        PrivateName(_LOSES_FUNCTIONS, (f"{owner}.serialize_keras_object",)),
        reached_by,
    )
    for owner, reached_by in (
        (
            "keras.src.saving.serialization_lib",
            lambda: keras.layers.Dense(1, activation=_function).get_config(),
        ),
        # Layers of users call these.
        ("keras.saving", None),
        ("keras.utils", None),
    )
)
LAMBDA = Replacement(
    PrivateName(
        _LOSES_FUNCTIONS, ("keras.layers.Lambda._serialize_function_to_config",)
    ),
    lambda: keras.layers.Lambda(lambda x: x).get_config(),
)


def from_own_config(model: keras.Model, functions: Mapping[str, Any]) -> keras.Model:
    """Returns a model with new variables, made from the config of a model.

    As in a file, an object that several layers share remains one object; `clone_model`
    makes several. The functions are those in the config by name, and may be added
    during the call.
    """
    sharing_scope = _SHARING_SCOPE.value
    with sharing_scope(), _without_imports():
        config = keras.saving.serialize_keras_object(model)
    classes = {type(layer).__name__: type(layer) for layer in layers_of(model)}
    with sharing_scope(), keras.saving.custom_object_scope(functions):
        # This is safe, because the config comes from this process.
        return keras.saving.deserialize_keras_object(
            config, custom_objects=classes, safe_mode=False
        )


def _without_imports() -> contextlib.AbstractContextManager[None]:
    """Makes libraries available in a block only if they are imported.

    Values of a library that is not imported do not exist.
    """
    return AVAILABLE.block(
        lambda is_available, library: (
            library.name.partition(".")[0] in sys.modules and is_available(library)
        )
    )


@contextlib.contextmanager
def kept_functions() -> Iterator[dict[str, Any]]:
    """Makes configs contain names of functions in a block; yields them by name."""
    by_name: dict[str, Any] = {}
    name_of = functools.partial(_kept_name, by_name)
    with contextlib.ExitStack() as blocks:
        blocks.enter_context(
            REGISTERED_NAME.block(lambda name, value: name_of(value) or name(value))
        )
        for serialization in SERIALIZATIONS:
            blocks.enter_context(
                serialization.block(functools.partial(_serialized, name_of))
            )
        blocks.enter_context(LAMBDA.block(functools.partial(_in_lambda, name_of)))
        yield by_name


def _kept_name(by_name: dict[str, Any], value: Any) -> str | None:
    """Returns the name of a function in a config, or `None` to use Keras's."""
    if not _is_plain_function(value):
        return None
    name = f"kte>function-{id(value)}"
    # The `id` is unique while the function is kept.
    by_name[name] = value
    return name


def _is_plain_function(value: Any) -> bool:
    """Returns whether a value is callable and has no config that makes it again."""
    if not callable(value) or isinstance(value, type) or hasattr(value, "get_config"):
        return False
    return not is_of_keras(value)


def is_of_keras(function: Any) -> bool:
    """Returns whether Keras finds a function by its name."""
    module = getattr(function, "__module__", None) or ""
    is_inner = "<" in getattr(function, "__qualname__", "<")
    return module.partition(".")[0] == "keras" and not is_inner


def _serialized(
    name_of: Callable[[Any], str | None], serialize: Callable[[Any], Any], value: Any
) -> Any:
    name = name_of(value)
    if name is None:
        return serialize(value)
    return {
        "module": None,
        "class_name": "function",
        "config": name,
        "registered_name": name,
    }


def _in_lambda(
    name_of: Callable[[Any], str | None],
    serialize: Callable[[Any, Any], Any],
    layer: Any,
    function: Any,
) -> Any:
    if name_of(function) is None:
        return serialize(layer, function)
    return keras.saving.serialize_keras_object(function)
