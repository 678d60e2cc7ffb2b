"""The arguments of user functions: their names, and copies of hyperparameters."""

import copy
import functools
import gc
import inspect
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import keras

# Training uses the variables of these objects, and arrays are immutable.
_SHARED = (
    jax.Array,
    keras.KerasTensor,
    keras.Operation,  # Includes layers and models.
    keras.Variable,
    keras.losses.Loss,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.random.SeedGenerator,
)
# Objects that a deep copy does not copy.
_ATOMS = (
    type,
    types.BuiltinFunctionType,
    types.FunctionType,
    types.ModuleType,
)


def copied(value: Any) -> Any:
    """Returns a deep copy that shares Keras objects and JAX arrays."""
    return copy.deepcopy(value, {id(shared): shared for shared in _shared(value)})


def with_additional(params: Any, additional: Mapping[str, Any]) -> Any:
    """Returns a copy of the user's `params`, a dict or `HParams`, with more values."""
    result = copied(params)
    for name, value in additional.items():
        if hasattr(result, "set_hparam"):
            exists = name in result
            (result.set_hparam if exists else result.add_hparam)(name, value)
        else:
            result[name] = value
    return result


def _shared(value: Any) -> list[Any]:
    """Returns the shared objects among all that a value refers to."""
    # A deep copy reaches the objects at any depth, so its memo must contain all.
    shared, ids, waiting = [], set(), [value]
    while waiting:
        value = waiting.pop()
        # A proxy has the class of its object, which may no longer exist.
        if type(value) in weakref.ProxyTypes:
            continue
        if id(value) in ids or isinstance(value, _ATOMS):
            continue
        ids.add(id(value))
        if isinstance(value, _SHARED):
            shared.append(value)
        else:
            waiting.extend(gc.get_referents(value))
    return shared


def argument_names(function: Any) -> tuple[str, ...]:
    """Returns the names of the arguments that a caller may pass.

    These exclude `*args`, `**kwargs` and arguments that a `functools.partial` binds,
    even below decorators.
    """
    bound: set[str] = set()
    for layer in layers_of(function):
        if isinstance(layer, functools.partial):
            # Its signature still contains them, with defaults.
            bound.update(layer.keywords)
        if hasattr(layer, "__signature__"):
            break
    return tuple(
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in bound
    )


def layers_of(function: Any) -> Iterator[Any]:
    """Yields a callable and the callables that it wraps, outermost first."""
    ids = set()
    while function is not None and id(function) not in ids:
        ids.add(id(function))
        yield function
        function = _wrapped(function)


def _wrapped(function: Any) -> Any:
    if isinstance(function, functools.partial):
        return function.func
    if inspect.ismethod(function):
        return function.__func__
    return getattr(function, "__wrapped__", None)
