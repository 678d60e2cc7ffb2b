"""A program on the devices: its compiled loop, and the owner of its values."""

import dataclasses
from typing import Self

from keras_tpu_estimator.base.common.ledger import compiling
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels
from keras_tpu_estimator.base.common.waiting import Waiting
from keras_tpu_estimator.engine.device.device_loop import DeviceLoop
from keras_tpu_estimator.engine.device.distributed_program import (
    DistributedProgram,
)
from keras_tpu_estimator.engine.device.executables import Executables
from keras_tpu_estimator.engine.device.variable_owner import VariableOwner
from keras_tpu_estimator.engine.device.variable_shardings import VariableShardings
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.files.warm_start.settings import WarmStartSettings


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A program on the devices, with its compiled loop and its variables' values."""

    program: DistributedProgram
    loop: DeviceLoop
    values: VariableOwner
    waiting: Waiting

    @classmethod
    def from_program(
        cls,
        program: DistributedProgram,
        debug_nans: bool = False,
        warm_start: WarmStartSettings | None = None,
        shows_progress: bool = False,
        executables: Executables | None = None,
    ) -> Self:
        """Returns the runtime of a program that has not run yet."""
        cores = program.layout(ModeKeys.TRAIN).cores
        shardings = VariableShardings(program.store, cores)
        waiting = Waiting(shows_progress)
        loop = DeviceLoop(program, shardings, debug_nans, waiting, executables)
        values = VariableOwner(program.store, shardings, warm_start)
        return cls(program, loop, values, waiting)

    def prepare(self, mode: str, features: Features, labels: Labels = None) -> Step:
        """Returns the step for inputs like these, traced at the first call."""
        with compiling, self.waiting:
            return self.program.prepare(mode, features, labels)
