"""Reads the checkpoints of this package like all others."""

from collections.abc import Sequence

import numpy as np

from keras_tpu_estimator.checkpoints import files
from keras_tpu_estimator.checkpoints import location
from keras_tpu_estimator.checkpoints.reader import CheckpointReader
from keras_tpu_estimator.storage import paths


def exists(path: str) -> bool:
    """Whether a path is that of one of this package's checkpoints.

    Args:
        path: A prefix such as 'dir/model.ckpt-20', or the file.

    Returns:
        True if the file is there; it is not opened.

    Example:

    >>> exists("/nowhere/model.ckpt-20")
    False
    """
    return paths.is_file(path.removesuffix(location.SUFFIX) + location.SUFFIX)


class OwnReader(CheckpointReader):
    """Reads a checkpoint that this package wrote.

    Args:
        path: A prefix such as 'dir/model.ckpt-20', or the file.

    Raises:
        ValueError: The file is damaged.
    """

    def __init__(self, path: str):
        super().__init__(path, files.describe(path))

    def _read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        return files.read(self.path, names)
