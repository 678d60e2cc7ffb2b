"""The main file of an Orbax checkpoint: 'model.ckpt-20.orbax'.

It contains the checksums of all files in the folder, because Orbax has no
checksums of complete files, and facts about variables that Orbax does not
store.
"""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Self

from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.files.atomic import checksum, commit, pieces
from keras_tpu_estimator.files.directory import layouts
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.intact import Content

# The name of the folder that Orbax writes.
FOLDER = "orbax"


@dataclasses.dataclass(frozen=True)
class MainFile:
    """The content of the main file.

    Attributes:
        path: The path of the main file.
        folder: The folder that Orbax wrote.
        rows: The number of rows without padding, for padded variables.
        sums: The size and the checksum of each file in the folder, by name.
    """

    path: str
    folder: str
    rows: Mapping[str, int]
    sums: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, prefix: str) -> Self:
        """Reads the main file of a prefix.

        Raises:
            FileNotFoundError: It is missing.
            ValueError: It is corrupt.
        """
        path = layouts.ORBAX.main(prefix)
        saved = SaveFiles.at(prefix)
        if saved is None or checksum.load(path) is None:
            raise ValueError(
                f"The file {path!r} is truncated or corrupt. Copy it again if "
                "it is a copy; otherwise use another checkpoint."
            )
        with open(path, "rb") as file:
            # Its own checksums follow the JSON.
            text = file.read().decode(errors="replace")
        said, _ = json.JSONDecoder().raw_decode(text)
        return cls(path, saved.named(FOLDER), said["rows"], said["files"])

    @classmethod
    def write(cls, saved: SaveFiles, rows: Mapping[str, int]) -> None:
        """Writes the main file after all other files are complete."""
        folder = saved.named(FOLDER)
        sums = {
            # Names have slashes on Windows as well.
            path.relative_to(folder).as_posix(): _sum(path, is_new=True)
            for directory, _, names in os.walk(folder)
            for path in (pathlib.Path(directory, name) for name in names)
        }
        for directory, _, _ in os.walk(folder):
            commit.sync_directory(directory)
        with commit.replacing(layouts.ORBAX.main(saved.prefix)) as partial:
            with open(partial, "w", encoding="utf-8") as file:
                json.dump({"rows": rows, "files": sums}, file)
            checksum.append(partial, token=saved.token)

    def contents(self) -> list[Content]:
        """Returns the expected content of the files in the folder."""
        return [
            Content((path,), functools.partial(_has, path, size, crc), crc)
            for name, (size, crc) in sorted(self.sums.items())
            for path in [os.path.join(self.folder, name)]
        ]


def contents(prefix: str) -> list[Content]:
    """Returns the expected content of an existing checkpoint's files.

    Raises:
        FileNotFoundError: It is missing.
        ValueError: Its main file is corrupt.
    """
    return MainFile.of(prefix).contents()


def _sum(path: PathLike, is_new: bool = False) -> tuple[int, int]:
    """Returns the size and the checksum of a file.

    Args:
        is_new: Whether it may not be on the disk yet. Orbax waits only for the
            files
            of TensorStore.
    """
    # Windows flushes only files that are open for writing.
    with open(path, "rb+" if is_new else "rb") as file:
        if is_new:
            os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        return size, pieces.crc_of(file.fileno(), 0, size)


def _has(path: str, size: int, crc: int) -> bool:
    try:
        return _sum(path) == (size, crc)
    except pieces.CorruptPieceError:
        return False
