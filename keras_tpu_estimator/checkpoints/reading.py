"""Reading a checkpoint, whoever wrote it."""

import os
from collections.abc import Mapping
from typing import Any
from typing import Protocol

import numpy as np

from keras_tpu_estimator.checkpoints import files
from keras_tpu_estimator.checkpoints import location


class Reader(Protocol):
    """The variables of a checkpoint, by name."""

    def get_variable_to_shape_map(self) -> Mapping[str, Any]:
        """The shape of every variable."""

    def get_tensor(self, name: str) -> np.ndarray:
        """The value of a variable."""


class OwnReader:
    """The variables of a checkpoint in HDF5.

    Args:
        prefix: Its path, without '.h5'.
    """

    def __init__(self, prefix: str):
        self._prefix = prefix
        self._values = files.read(prefix)

    def get_variable_to_shape_map(self) -> dict[str, tuple[int, ...]]:
        """The shape of every variable."""
        return {name: value.shape for name, value in self._values.items()}

    def get_tensor(self, name: str) -> np.ndarray:
        """The value of a variable."""
        return self._values[name]


def open_any(path: str | bytes | os.PathLike) -> Reader:
    """Opens a checkpoint of ours or of TensorFlow's.

    Args:
        path: A prefix, a file, or a directory of checkpoints, whose latest is
            meant.

    Returns:
        A reader. TensorFlow is imported for its own checkpoints only.

    Raises:
        ValueError: There is none.

    Example:

    >>> import tempfile
    >>> import numpy as np
    >>> from keras_tpu_estimator import checkpoints
    >>> prefix = checkpoints.save(tempfile.mkdtemp(), 1, {"bias": np.ones(2)})
    >>> open_any(prefix).get_tensor("bias")
    array([1., 1.])
    """
    name = os.fsdecode(path)
    theirs = _of_tensorflow(name)
    if theirs is not None:
        import tensorflow as tf

        return tf.train.load_checkpoint(theirs)
    return OwnReader(location.resolve(name))


def _of_tensorflow(path: str) -> str | None:
    """The prefix of TensorFlow's checkpoint at a path, if there is one."""
    if os.path.isfile(path + ".index"):
        return path
    in_saved_model = os.path.join(path, "variables", "variables")
    if os.path.isfile(in_saved_model + ".index"):
        return in_saved_model
    if not os.path.isfile(os.path.join(path, "checkpoint")):
        return None
    import tensorflow as tf

    latest = tf.train.latest_checkpoint(path)
    return latest if latest and os.path.isfile(latest + ".index") else None
