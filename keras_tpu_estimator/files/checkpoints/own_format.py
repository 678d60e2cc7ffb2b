"""Reads the checkpoints of this package like all others."""

import contextlib
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Self

import numpy as np

from keras_tpu_estimator.files.checkpoints import files
from keras_tpu_estimator.files.checkpoints import location
from keras_tpu_estimator.files.checkpoints.opened_checkpoint import (
    OpenedCheckpoint,
)
from keras_tpu_estimator.files.checkpoints.opened_checkpoint import opened_again
from keras_tpu_estimator.files.checkpoints.reader import CheckpointReader
from keras_tpu_estimator.ground.base.index_ranges import IndexRanges
from keras_tpu_estimator.ground.storage import paths


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

        self._opened: OpenedCheckpoint | None = None

    @contextlib.contextmanager
    def held_open(self) -> Iterator[Self]:
        """Keeps the files open in a `with` block."""
        if self._opened is not None:
            yield self
            return
        prefix = self.path.removesuffix(location.SUFFIX)
        with opened_again(prefix, self.path) as self._opened:
            try:
                self._opened.hold()
                yield self
            finally:
                self._opened = None

    def _read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        with self.held_open():
            return self._now_open.read(names)

    def _read_part(self, name: str, box: IndexRanges) -> np.ndarray:
        with self.held_open():
            return self._now_open.read_box(name, box)

    @property
    def _now_open(self) -> OpenedCheckpoint:
        if self._opened is None:
            raise RuntimeError("The checkpoint should be open.")
        return self._opened
