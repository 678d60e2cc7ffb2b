"""Reads the checkpoints of an Orbax of before it had metadata.

A file `checkpoint` in the folder has the tree, and small arrays; others are in
folders of their own. Older programs of flax have written such.
"""

import os

from keras_tpu_estimator.files.formats.arrays_in_memory import ArraysReader
from keras_tpu_estimator.files.formats.orbax import reader as orbax_format
from keras_tpu_estimator.ground.storage import paths

_TREE = "checkpoint"
# The first byte of a map of MessagePack is not of a text, as the list of
# checkpoints of that name is.
_LEAST_OF_MAPS = b"\x80"


def exists(path: str) -> bool:
    """Whether a folder is such a checkpoint."""
    tree = os.path.join(path, _TREE)
    if not paths.is_file(tree) or orbax_format.exists(path):
        return False
    with paths.opened(tree) as file:
        return file.read(1) >= _LEAST_OF_MAPS


class LegacyReader(ArraysReader):
    """Reads all arrays at once, for nothing else says what they are."""

    def __init__(self, path: str):
        with orbax_format.explained(path):
            handler = orbax_format.handler()
            tree = handler.restore(orbax_format.folder_of(path))
        super().__init__(tree)
        self.path = path
