"""Reading, writing and choosing checkpoints outside an estimator.

>>> import tempfile
>>> from keras_tpu_estimator import checkpoints
>>> checkpoints.latest(tempfile.mkdtemp()) is None
True
"""

from keras_tpu_estimator.files.checkpoints.jax_params import read_jax_params
from keras_tpu_estimator.files.checkpoints.saving import save
from keras_tpu_estimator.files.directory.location import latest, resolve
from keras_tpu_estimator.files.directory.retention import KeepBest, Retention, best
from keras_tpu_estimator.files.directory.state_file import (
    training_is_complete,
)
from keras_tpu_estimator.files.formats.latest_checkpoints import latest_intact
from keras_tpu_estimator.files.formats.loading import read, step_of
from keras_tpu_estimator.files.formats.reader import (
    CheckpointReader,
    VariableNotFoundError,
)
from keras_tpu_estimator.files.warm_start.assignment import resolve_assignments
from keras_tpu_estimator.files.warm_start.pairing import WarmStartReport
from keras_tpu_estimator.files.warm_start.values import (
    WarmStartError,
    warm_start_values,
)

__all__ = [
    "CheckpointReader",
    "KeepBest",
    "Retention",
    "VariableNotFoundError",
    "WarmStartError",
    "WarmStartReport",
    "best",
    "latest",
    "latest_intact",
    "read",
    "read_jax_params",
    "resolve",
    "resolve_assignments",
    "save",
    "step_of",
    "training_is_complete",
    "warm_start_values",
]
