"""A call of an estimator that is planned, and changes by which it fits."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeAlias

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import InputFn
from keras_tpu_estimator.planning.memory import ArrayBytes
from keras_tpu_estimator.runs.estimator_context import EstimatorContext


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of an estimator that is planned from one batch of its input, with the
    arrays that earlier calls leave on each core (`resident`), by kind.
    """

    context: EstimatorContext
    input_fn: InputFn
    mode: str
    steps: int | None = None
    resident: Mapping[str, ArrayBytes] = dataclasses.field(default_factory=dict)

    @property
    def batch_size(self) -> int | None:
        """The batch size from the estimator's arguments, or `None`."""
        return self.context.mode_devices.batch_sizes[self.mode]

    def with_batch_size(self, size: int) -> Self:
        """Returns the same call with another batch size."""
        mode_devices = self.context.mode_devices
        sizes = {**mode_devices.batch_sizes, self.mode: size}
        mode_devices = dataclasses.replace(mode_devices, batch_sizes=sizes)
        context = dataclasses.replace(self.context, mode_devices=mode_devices)
        return dataclasses.replace(self, context=context)

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """Returns the same call with other fields of `RunConfig` or `TPUConfig`."""
        config = self.context.config
        of_tpu = {f.name for f in dataclasses.fields(config.tpu_config)}
        tpu = {name: value for name, value in options.items() if name in of_tpu}
        changes = {name: value for name, value in options.items() if name not in of_tpu}
        if tpu:
            changes["tpu_config"] = dataclasses.replace(config.tpu_config, **tpu)
        config = config.replace(**changes)
        devices = dataclasses.replace(self.context.mode_devices, config=config)
        context = dataclasses.replace(self.context, config=config, mode_devices=devices)
        return dataclasses.replace(self, context=context)


# Compiles a call, and returns whether it fits.
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
    """Returns the first options by which a call of `train` that does not fit would fit,
    or none.
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
    return {
        field.name: (getattr(config, field.name), field.default) for field in fields
    }


def _is_chosen(value: Any, default: Any) -> bool:
    # `True` equals 1.
    return type(value) is not type(default) or bool(value != default)
