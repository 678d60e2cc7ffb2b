"""Reading, writing and choosing checkpoints, and formats of your own.

>>> import tempfile
>>> from keras_tpu_estimator import checkpoints
>>> checkpoints.latest(tempfile.mkdtemp()) is None
True
"""

from keras_tpu_estimator.files.checkpoints.jax_params import read_jax_params
from keras_tpu_estimator.files.checkpoints.saving import save
from keras_tpu_estimator.files.directory.layouts import Layout
from keras_tpu_estimator.files.directory.location import latest, resolve
from keras_tpu_estimator.files.directory.retention import KeepBest, Retention, best
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.directory.state_file import (
    training_is_complete,
)
from keras_tpu_estimator.files.formats.checkpoint_format import CheckpointFormat
from keras_tpu_estimator.files.formats.latest_checkpoints import latest_intact
from keras_tpu_estimator.files.formats.loading import read, step_of
from keras_tpu_estimator.files.formats.reader import (
    CheckpointReader,
    FileContent,
    StoredVariable,
    VariableNotFoundError,
)
from keras_tpu_estimator.files.formats.registry import register_format
from keras_tpu_estimator.files.formats.shards import (
    ShardedVariable,
    ShardValues,
    ShardWriter,
)
from keras_tpu_estimator.files.warm_start.assignment import resolve_assignments
from keras_tpu_estimator.files.warm_start.pairing import WarmStartReport
from keras_tpu_estimator.files.warm_start.values import (
    WarmStartError,
    warm_start_values,
)

__all__ = [
    "CheckpointFormat",
    "CheckpointReader",
    "FileContent",
    "KeepBest",
    "Layout",
    "Retention",
    "SaveFiles",
    "ShardValues",
    "ShardWriter",
    "ShardedVariable",
    "StoredVariable",
    "VariableNotFoundError",
    "WarmStartError",
    "WarmStartReport",
    "best",
    "latest",
    "latest_intact",
    "read",
    "read_jax_params",
    "register_format",
    "resolve",
    "resolve_assignments",
    "save",
    "step_of",
    "training_is_complete",
    "warm_start_values",
]
