"""What outlives a call: the model, its compiled loop, and its values."""

import dataclasses
from typing import Self

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.base.types import Features
from keras_tpu_estimator.base.types import Labels
from keras_tpu_estimator.base.waiting import Waiting
from keras_tpu_estimator.checkpoints.warm_start_settings import (
    WarmStartSettings,
)
from keras_tpu_estimator.device.device_loop import DeviceLoop
from keras_tpu_estimator.device.estimator_model import EstimatorModel
from keras_tpu_estimator.device.executables import Executables
from keras_tpu_estimator.device.values import ModelValues
from keras_tpu_estimator.device.variable_places import VariablePlaces
from keras_tpu_estimator.program.steps import Step


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A model on the devices.

    Attributes:
        model: The model.
        loop: Its steps, compiled.
        values: The owner of its variables' values.
        waiting: Shows what takes its time.
    """

    model: EstimatorModel
    loop: DeviceLoop
    values: ModelValues
    waiting: Waiting

    @classmethod
    def of(
        cls,
        model: EstimatorModel,
        debug_nans: bool = False,
        warm_start: WarmStartSettings | None = None,
        shows_progress: bool = False,
        executables: Executables | None = None,
    ) -> Self:
        """The runtime of a model that has not run yet.

        Args:
            model: The model.
            debug_nans: As in `DeviceLoop`. Defaults to `False`.
            warm_start: As in `ModelValues`. Defaults to `None`.
            shows_progress: Whether the terminal shows what takes its time.
                Defaults to `False`.
            executables: As in `DeviceLoop`. Defaults to none.
        """
        cores = model.layout(ModeKeys.TRAIN).cores
        places = VariablePlaces(model.program.store, cores)
        waiting = Waiting(shows_progress)
        loop = DeviceLoop(model, places, debug_nans, waiting, executables)
        values = ModelValues(model, places, warm_start)
        return cls(model, loop, values, waiting)

    def prepare(
        self, mode: str, features: Features, labels: Labels = None
    ) -> Step:
        """The step for inputs like these, traced if they are the first."""
        with self.waiting:
            return self.model.prepare(mode, features, labels)
