"""A call of an estimator that is planned."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from keras_tpu_estimator.base.common.types import InputFn
from keras_tpu_estimator.planning.memory import Held
from keras_tpu_estimator.runs.estimator_context import EstimatorContext


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of an estimator that is planned.

    Attributes:
        input_fn: The user's function; one batch of it is read.
        steps: The number of steps of the call. Defaults to `None`: unknown.
        kept: The arrays that earlier calls leave on each core, by kind. Defaults to
            none.
    """

    context: EstimatorContext
    input_fn: InputFn
    mode: str
    steps: int | None = None
    kept: Mapping[str, Held] = dataclasses.field(default_factory=dict)

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
        own = {name: value for name, value in options.items() if name not in of_tpu}
        if tpu:
            own["tpu_config"] = dataclasses.replace(config.tpu_config, **tpu)
        config = config.replace(**own)
        devices = dataclasses.replace(self.context.mode_devices, config=config)
        context = dataclasses.replace(self.context, config=config, mode_devices=devices)
        return dataclasses.replace(self, context=context)
