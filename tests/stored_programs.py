"""Programs that are compiled ahead of time for the simulated devices.

No TPU topology consists of CPUs, so `plan` does not store programs for them.
"""

import contextlib
import logging

from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.engine.device.executables import ExecutableKey, Executables
from keras_tpu_estimator.planning.compiling import without_cache
from keras_tpu_estimator.planning.lowering import LoweredLoop

RUNNING = "Running the executable in "


def store(estimator, input_fn, folder, mode):
    """Stores a call's program and returns the path of its file."""
    # XLA cannot store a CPU program that was read from JAX's cache.
    with without_cache():
        loop = LoweredLoop.from_call(
            estimator._context, input_fn, mode, Machine.from_jax()
        )
        key = ExecutableKey.from_lowered(mode, loop.lowered, loop.devices)
        return Executables(str(folder)).save(key, loop.lowered.compile())


@contextlib.contextmanager
def lines():
    """Collects the records that this package logs in a `with` block."""
    logger, records = logging.getLogger("keras_tpu_estimator"), []
    handler, level = logging.Handler(), logger.level
    handler.emit = records.append
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield records
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def ran(records):
    """Returns the files of the executables that ran, according to the log."""
    lines = (record.getMessage() for record in records)
    return [
        line.removeprefix(RUNNING).removesuffix(".")
        for line in lines
        if line.startswith(RUNNING)
    ]
