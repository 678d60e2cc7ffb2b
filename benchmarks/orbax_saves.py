"""Checkpoints of Orbax with its default settings.

The defaults are OCDBT with Zarr arrays and Zstandard, which cannot compress the values.
`pip install -e '.[bench]'` installs it.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any


class OrbaxSaves:
    """Checkpoints at one path, which replace each other.

    Args:
        directory: The parent directory.
    """

    def __init__(self, directory: str):
        from orbax import checkpoint

        self._path = os.path.join(directory, "orbax")
        self._checkpointer = checkpoint.StandardCheckpointer()

    @staticmethod
    def are_possible() -> bool:
        """Whether Orbax is installed."""
        return importlib.util.find_spec("orbax") is not None

    def begin(self, values: Mapping[str, Any]) -> None:
        """Starts a save, during which training would continue."""
        self._checkpointer.save(self._path, dict(values), force=True)

    def save(self, values: Mapping[str, Any]) -> None:
        """Saves, and returns when the checkpoint has its final name."""
        self.begin(values)
        self._checkpointer.wait_until_finished()

    def restore(self) -> Mapping[str, Any]:
        """Returns the saved values."""
        return self._checkpointer.restore(self._path)

    def remove(self) -> None:
        """Removes the checkpoint after it is complete."""
        self._checkpointer.wait_until_finished()
        shutil.rmtree(self._path)

    def files(self) -> Iterator[str]:
        """Returns the paths of the saved files."""
        for directory, _, names in os.walk(self._path):
            yield from (os.path.join(directory, name) for name in names)
