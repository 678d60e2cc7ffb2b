"""Changes by which a program fits that does not, tried by the compiler."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.planning.calls import Call

Fits: TypeAlias = Callable[[Call], bool]

# Fields of `RunConfig` and `TPUConfig`. Those that slow a step down least come
# first.
_OPTIONS: tuple[Mapping[str, Any], ...] = (
    {"shard_optimizer": True},
    {"fsdp": True},
    {"micro_batches": 4},
    {"remat": "full"},
    {"num_cores_per_replica": 2},
    {"fsdp": True, "remat": "full"},
)


def fitting_options(call: Call, fits: Fits) -> Mapping[str, Any]:
    """Returns the first options by which a call of `train` fits, or none.

    Args:
        call: A call whose program does not fit.
        fits: Compiles a call, and returns whether it fits.
    """
    if call.mode != ModeKeys.TRAIN or not call.context.mode_devices.use_tpu:
        return {}
    for options in _OPTIONS:
        if _are_new(options, call) and fits(call.with_options(options)):
            return options
    return {}


def _are_new(options: Mapping[str, Any], call: Call) -> bool:
    """Returns whether the call has other values, and no user chose one of them."""
    config = call.context.config
    fields = {**_values(config.tpu_config), **_values(config)}
    return not any(_is_chosen(*fields[name]) for name in options)


def _values(config: Any) -> dict[str, tuple[Any, Any]]:
    """Returns the value and the default of each field."""
    fields = dataclasses.fields(config)
    return {each.name: (getattr(config, each.name), each.default) for each in fields}


def _is_chosen(value: Any, default: Any) -> bool:
    # `True` equals 1.
    return type(value) is not type(default) or bool(value != default)
