"""Reads the trees of Orbax that this package has written, as they were."""

import contextlib
import os
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np

from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.formats.intact import are_intact
from keras_tpu_estimator.files.formats.missing import removed
from keras_tpu_estimator.files.formats.orbax.main_file import MainFile
from keras_tpu_estimator.files.formats.orbax.reader import OrbaxReader
from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.formats.reader import Stored
from keras_tpu_estimator.ground.base.index_ranges import IndexRanges
from keras_tpu_estimator.ground.storage import paths


class TreeReader(CheckpointReader):
    """Reads a checkpoint that `write` has written.

    Args:
        prefix: Its path, without '.orbax'.

    Raises:
        ValueError: A file is damaged. All are read to find out, for Orbax
            would not tell.
    """

    def __init__(self, prefix: str):
        self._prefix = prefix
        self._main = main = MainFile.of(prefix)
        self._check()
        self._tree = OrbaxReader(main.folder)
        stored = self._tree.by_any_name()
        self._rows = main.rows
        listed = {
            name: Stored(
                self._cut(name, stored[name].shape), stored[name].dtype
            )
            for name in self._tree.get_variable_to_shape_map()
        }
        super().__init__(prefix, listed)

    def _cut(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        rows = self._rows.get(name)
        return shape if rows is None else (rows, *shape[1:])

    def _read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        with self._told():
            found = self._tree.get_tensors(names)
        return {
            name: value[: self._rows[name]] if name in self._rows else value
            for name, value in found.items()
        }

    def _read_part(self, name: str, box: IndexRanges) -> np.ndarray:
        with self._told():
            return self._tree.get_part(name, box.slices)

    def _check(self) -> None:
        """Raises if some of the files are not as they were."""
        wrong = [
            each.files[0]
            for each in self._main.contents()
            if not are_intact([each])
        ]
        if wrong and not self._is_there:
            raise removed(self._prefix)
        if wrong:
            names = [os.path.relpath(path, self._main.folder) for path in wrong]
            raise ValueError(
                f"The checkpoint {self._prefix!r} is truncated or damaged: "
                f"{names} of the folder {self._main.folder!r} are not as they "
                "were written. Copy it again if it is a copy; otherwise use "
                "another one."
            )

    @property
    def _is_there(self) -> bool:
        return paths.is_file(self._prefix + location.TREE)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Has who reads know that a checkpoint was removed meanwhile."""
        try:
            yield
        except ValueError as error:
            if self._is_there:
                raise
            raise removed(self._prefix) from error
