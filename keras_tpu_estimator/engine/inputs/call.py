"""Calling a user's `input_fn` with what it asks for."""

import inspect
from typing import Any

from keras_tpu_estimator.ground.base.params import copied
from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.types import InputFn


def call_input_fn(
    input_fn: InputFn, mode: str, params: Any, config: Any
) -> Any:
    """Calls an `input_fn`, by the names of its arguments.

    Args:
        input_fn: Takes `params` and any of `mode`, `config` and
            `input_context`.
        mode: A value of `ModeKeys`.
        params: The user's hyperparameters with `batch_size` and `context`.
        config: The run configuration.

    Returns:
        What it returned.

    Raises:
        TypeError: It is not callable.
        ValueError: It does not take `params`.
    """
    if not callable(input_fn):
        raise TypeError(
            "`input_fn` should be a function of params. Received: "
            f"{shown(input_fn)}. Pass the "
            "function itself, without calling it."
        )
    parameters = inspect.signature(input_fn).parameters.values()
    # A partial's signature still has what is bound by name.
    bound = getattr(input_fn, "keywords", {})
    names = {p.name for p in parameters if p.name not in bound}
    if "params" not in names:
        raise ValueError(
            "`input_fn` should take an argument `params`: TPUEstimator passes "
            "the batch size in params['batch_size']. Received a function of "
            f"{sorted(names)}."
        )
    available = {"mode": mode, "config": config, "input_context": None}
    kwargs = {
        name: copied(value)
        for name, value in available.items()
        if name in names
    }
    return input_fn(params=params, **kwargs)
