"""Front ends: ways to write a `model_fn`, and the names for writing another one.

A front end is a subclass of `FrontEnd` whose `make_program` returns a `Program`.
"""

from keras_tpu_estimator.engine.program.additions import StepAdditions
from keras_tpu_estimator.engine.program.bound_model_fn import TraceOptions
from keras_tpu_estimator.engine.program.steps import (
    Program,
    Step,
    StepInput,
    metrics_of,
    outputs_of,
    splits,
)
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.front_ends.front_end import FrontEnd

__all__ = [
    "FrontEnd",
    "Program",
    "Step",
    "StepAdditions",
    "StepInput",
    "TraceOptions",
    "VariableStore",
    "metrics_of",
    "outputs_of",
    "splits",
]
