"""The types in signatures, and the base classes of public names.

Annotations in scripts can use them.

>>> import keras_tpu_estimator as kte
>>> def loss_of(
...     estimator: kte.TPUEstimator, input_fn: kte.typing.InputFn
... ) -> float:
...     return estimator.evaluate(input_fn)["loss"]
"""

from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import LaterArgs, LoopHook
from keras_tpu_estimator.api.model_fn.known_variables import Reuse
from keras_tpu_estimator.api.model_fn.moving_averages import AverageOp
from keras_tpu_estimator.api.model_fn.scaffold import InitSession
from keras_tpu_estimator.api.model_fn.updates import Update
from keras_tpu_estimator.api.optimizers.optax_optimizer import (
    GradientTransformation,
)
from keras_tpu_estimator.base.common.named_tuple_like import NamedTupleLike
from keras_tpu_estimator.base.common.types import (
    CheckpointLike,
    Features,
    InputFn,
    Labels,
    MetricFn,
    PathLike,
    PyTree,
    TensorLike,
)
from keras_tpu_estimator.base.mesh.cores import Cores
from keras_tpu_estimator.engine.device.distributed_program import (
    DistributedProgram,
)
from keras_tpu_estimator.engine.program.bound_model_fn import BoundModelFn
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.estimator.exporting_estimator import ExportingEstimator
from keras_tpu_estimator.estimator.planning_estimator import PlanningEstimator
from keras_tpu_estimator.estimator.trained_estimator import TrainedEstimator
from keras_tpu_estimator.files.directory.state_file import CheckpointState, Saved
from keras_tpu_estimator.files.formats.reader import Stored
from keras_tpu_estimator.files.summary.kinds import Summary
from keras_tpu_estimator.files.summary.recording import Sink
from keras_tpu_estimator.files.warm_start.pairing import Described, HasPath, Pairing
from keras_tpu_estimator.front_ends.front_end import FrontEnd
from keras_tpu_estimator.front_ends.keras.keras_file import Trained
from keras_tpu_estimator.front_ends.keras_model.model_files import SavedByWeights
from keras_tpu_estimator.front_ends.keras_model.program_model import ProgramModel
from keras_tpu_estimator.front_ends.tables.parameters import (
    OptimizationParameters,
)
from keras_tpu_estimator.planning.memory import Allocation, ArrayBytes
from keras_tpu_estimator.tf1.foreign_calls import Place
from keras_tpu_estimator.tf1.marking import TF1ModelFn
from keras_tpu_estimator.tf1.shims.resolving import Name
from keras_tpu_estimator.workflow.exporters import SavedModelExporter

__all__ = [
    "Allocation",
    "AverageOp",
    "BoundModelFn",
    "CheckpointLike",
    "CheckpointState",
    "Cores",
    "Described",
    "DistributedProgram",
    "ExportingEstimator",
    "Features",
    "FrontEnd",
    "GradientTransformation",
    "HasPath",
    "ArrayBytes",
    "InitSession",
    "InputFn",
    "Labels",
    "LaterArgs",
    "LoopHook",
    "MetricFn",
    "Name",
    "NamedTupleLike",
    "OptimizationParameters",
    "Pairing",
    "PathLike",
    "Place",
    "PlanningEstimator",
    "ProgramModel",
    "PyTree",
    "Reuse",
    "Saved",
    "SavedByWeights",
    "SavedModelExporter",
    "Session",
    "Sink",
    "Step",
    "Stored",
    "Summary",
    "TF1ModelFn",
    "TensorLike",
    "Trained",
    "TrainedEstimator",
    "Update",
]
