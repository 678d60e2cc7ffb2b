"""Checkpoints: HDF5 files of named variables, and the list of them."""

from keras_tpu_estimator.checkpoints.files import VariableNotFoundError
from keras_tpu_estimator.checkpoints.files import names
from keras_tpu_estimator.checkpoints.files import read
from keras_tpu_estimator.checkpoints.files import step_of
from keras_tpu_estimator.checkpoints.files import value
from keras_tpu_estimator.checkpoints.location import latest
from keras_tpu_estimator.checkpoints.location import resolve
from keras_tpu_estimator.checkpoints.retention import Retention
from keras_tpu_estimator.checkpoints.saving import save

__all__ = [
    "Retention",
    "VariableNotFoundError",
    "latest",
    "names",
    "read",
    "resolve",
    "save",
    "step_of",
    "value",
]
