"""Checkpoints: named variables, in HDF5 or as TensorFlow has them."""

from keras_tpu_estimator.files.checkpoints.assignment import resolve_assignments
from keras_tpu_estimator.files.checkpoints.completion import (
    training_is_complete,
)
from keras_tpu_estimator.files.checkpoints.contents import names
from keras_tpu_estimator.files.checkpoints.contents import read
from keras_tpu_estimator.files.checkpoints.contents import step_of
from keras_tpu_estimator.files.checkpoints.contents import value
from keras_tpu_estimator.files.checkpoints.intact import latest_intact
from keras_tpu_estimator.files.checkpoints.keep_best import KeepBest
from keras_tpu_estimator.files.checkpoints.keep_best import best
from keras_tpu_estimator.files.checkpoints.location import latest
from keras_tpu_estimator.files.checkpoints.location import resolve
from keras_tpu_estimator.files.checkpoints.missing import VariableNotFoundError
from keras_tpu_estimator.files.checkpoints.reader import CheckpointReader
from keras_tpu_estimator.files.checkpoints.report import WarmStartReport
from keras_tpu_estimator.files.checkpoints.retention import Retention
from keras_tpu_estimator.files.checkpoints.saving import save
from keras_tpu_estimator.files.checkpoints.warm_start import WarmStartError
from keras_tpu_estimator.files.checkpoints.warm_start import warm_start_values

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
    "names",
    "read",
    "resolve",
    "resolve_assignments",
    "save",
    "step_of",
    "training_is_complete",
    "value",
    "warm_start_values",
]
