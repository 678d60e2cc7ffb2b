"""Programs that were compiled ahead of time, for the devices that there are.

No board is made of CPUs, so that `plan` does not store for them.
"""

from keras_tpu_estimator.base.machine import Machine
from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.device.executable_key import ExecutableKey
from keras_tpu_estimator.device.executables import Executables
from keras_tpu_estimator.planning.compiling import without_cache
from keras_tpu_estimator.planning.lowering import LoweredLoop

RUNNING = "Running the executable in "


def store(estimator, input_fn, folder, mode):
    """Stores the program of a call; the path of its file."""
    machine = Machine.here()
    if mode == ModeKeys.PREDICT:
        # Hosts predict by themselves.
        machine = Machine(machine.own, machine.host)
    loop = LoweredLoop.of(estimator._job, input_fn, mode, machine)
    key = ExecutableKey.of(mode, loop.lowered, loop.devices)
    with without_cache():
        return Executables(str(folder)).save(key, loop.lowered.compile())


def ran(caplog):
    """The files of the executables that were run, of those in the log."""
    return [
        record.getMessage().removeprefix(RUNNING).removesuffix(".")
        for record in caplog.records
        if record.getMessage().startswith(RUNNING)
    ]
