"""What outlives a call: the model, its compiled loop, and its values."""

import dataclasses
from typing import Self

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.checkpoints.warm_start_settings import (
    WarmStartSettings,
)
from keras_tpu_estimator.device.device_loop import DeviceLoop
from keras_tpu_estimator.device.estimator_model import EstimatorModel
from keras_tpu_estimator.device.values import ModelValues
from keras_tpu_estimator.device.variable_places import VariablePlaces


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A model on the devices.

    Attributes:
        model: The model.
        loop: Its steps, compiled.
        values: The owner of its variables' values.
    """

    model: EstimatorModel
    loop: DeviceLoop
    values: ModelValues

    @classmethod
    def of(
        cls,
        model: EstimatorModel,
        debug_nans: bool = False,
        warm_start: WarmStartSettings | None = None,
    ) -> Self:
        """The runtime of a model that has not run yet.

        Args:
            model: The model.
            debug_nans: As in `DeviceLoop`. Defaults to `False`.
            warm_start: As in `ModelValues`. Defaults to `None`.
        """
        cores = model.layout(ModeKeys.TRAIN).cores
        places = VariablePlaces(model.program.store, cores)
        loop = DeviceLoop(model, places, debug_nans)
        return cls(model, loop, ModelValues(model, places, warm_start))
