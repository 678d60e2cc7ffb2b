"""Reads the checkpoints of this package like all others."""

import contextlib
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Self

import numpy as np

from keras_tpu_estimator.files.formats.hdf5.opened_checkpoint import (
    OpenedCheckpoint,
)
from keras_tpu_estimator.files.formats.hdf5.opened_checkpoint import opened
from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.formats.reader import Stored
from keras_tpu_estimator.ground.base.index_ranges import IndexRanges


class Hdf5Reader(CheckpointReader):
    """Reads a checkpoint that this package wrote.

    Args:
        prefix: Its path, without '.h5'.

    Raises:
        ValueError: The main file is damaged.
    """

    def __init__(self, prefix: str):
        super().__init__(prefix, self._describe)
        self._opened: OpenedCheckpoint | None = None
        with opened(prefix):
            pass  # It is there, and as it was written.

    @contextlib.contextmanager
    def held_open(self) -> Iterator[Self]:
        """Keeps the files open in a `with` block."""
        if self._opened is not None:
            yield self
            return
        with opened(self.path) as self._opened:
            try:
                self._opened.hold()
                yield self
            finally:
                self._opened = None

    def _describe(self) -> dict[str, Stored]:
        with self.held_open():
            return self._now_open.describe()

    def _read_unlisted(
        self, names: Sequence[str]
    ) -> dict[str, np.ndarray] | None:
        with self.held_open():
            return self._now_open.read_plain(names)

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
