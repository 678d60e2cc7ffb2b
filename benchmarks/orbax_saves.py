"""Our peer in checkpoints: Orbax, as it is without any settings.

That is OCDBT with Zarr arrays and Zstandard, which cannot shrink what we save.
`pip install -e '.[bench]'` installs it.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any


class OrbaxSaves:
    """Checkpoints at one path, each in the place of the one before.

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
        """Begins to save; training would go on from here."""
        self._checkpointer.save(self._path, dict(values), force=True)

    def save(self, values: Mapping[str, Any]) -> None:
        """Saves, and returns when the checkpoint has its name."""
        self.begin(values)
        self._checkpointer.wait_until_finished()

    def restore(self) -> Mapping[str, Any]:
        """The values."""
        return self._checkpointer.restore(self._path)

    def remove(self) -> None:
        """Removes what was saved, once it is."""
        self._checkpointer.wait_until_finished()
        shutil.rmtree(self._path)

    def files(self) -> Iterator[str]:
        """The paths of what was saved."""
        for directory, _, names in os.walk(self._path):
            yield from (os.path.join(directory, name) for name in names)
