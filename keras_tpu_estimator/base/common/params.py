"""Copies of hyperparameters, which a `model_fn` may change."""

import copy
import gc
import types
from collections.abc import Mapping
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
    """Returns a deep copy that shares Keras objects and JAX arrays.

    Args:
        value: A pytree or an object that may contain such objects.

    Example:

    >>> params = {"layer": keras.layers.Dense(1), "sizes": [8]}
    >>> copy = copied(params)
    >>> copy["sizes"].append(16)
    >>> params["sizes"], copy["layer"] is params["layer"]
    ([8], True)
    """
    return copy.deepcopy(value, {id(each): each for each in _shared(value)})


def with_additional(params: Any, additional: Mapping[str, Any]) -> Any:
    """Returns a copy of the user's `params` with additional values.

    Args:
        params: A dict, or an object with `set_hparam` and `add_hparam`.
        additional: Values by name.

    Example:

    >>> with_additional({"rate": 0.1}, {"batch_size": 8})
    {'rate': 0.1, 'batch_size': 8}
    """
    result = copied(params)
    for name, value in additional.items():
        if hasattr(result, "set_hparam"):
            known = name in result
            (result.set_hparam if known else result.add_hparam)(name, value)
        else:
            result[name] = value
    return result


def _shared(value: Any) -> list[Any]:
    """Returns the shared objects among all that a value refers to."""
    found, seen, waiting = [], set(), [value]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _ATOMS):
            continue
        seen.add(id(each))
        if isinstance(each, _SHARED):
            found.append(each)
        else:
            waiting.extend(gc.get_referents(each))
    return found
