"""The main file of a tree: 'model.ckpt-20.orbax'.

It has the checksums of all files in the folder, for Orbax has none of whole
files, and what Orbax does not know of variables.
"""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Self

from keras_tpu_estimator.files.atomic import checksum
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.atomic import pieces
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.intact import Content
from keras_tpu_estimator.ground.base.types import PathLike


@dataclasses.dataclass(frozen=True)
class MainFile:
    """What it says.

    Attributes:
        path: The file.
        folder: That of the tree.
        rows: How many rows are a variable's own, where there are more.
        sums: The size and the checksum of each file in the folder, by name.
    """

    path: str
    folder: str
    rows: Mapping[str, int]
    sums: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, prefix: str) -> Self:
        """Reads it.

        Raises:
            FileNotFoundError: It is not there.
            ValueError: It is damaged.
        """
        path = prefix + location.TREE
        saved = SaveFiles.at(prefix)
        if saved is None or checksum.load(path) is None:
            raise ValueError(
                f"The file {path!r} is truncated or damaged. Copy it again if "
                "it is a copy; otherwise use another checkpoint."
            )
        with open(path, "rb") as file:
            # Behind it are its own checksums.
            text = file.read().decode(errors="replace")
        said, _ = json.JSONDecoder().raw_decode(text)
        return cls(path, saved.tree, said["rows"], said["files"])

    @classmethod
    def write(cls, saved: SaveFiles, rows: Mapping[str, int]) -> None:
        """Writes it, when all else is written.

        Args:
            saved: The files of the save.
            rows: As above.
        """
        sums = {
            # With slashes on Windows as well.
            path.relative_to(saved.tree).as_posix(): _sum(path, is_new=True)
            for directory, _, names in os.walk(saved.tree)
            for path in (pathlib.Path(directory, name) for name in names)
        }
        for directory, _, _ in os.walk(saved.tree):
            commit.sync_directory(directory)
        with commit.replacing(saved.prefix + location.TREE) as partial:
            with open(partial, "w", encoding="utf-8") as file:
                json.dump({"rows": rows, "files": sums}, file)
            checksum.append(partial, token=saved.token)

    def contents(self) -> list[Content]:
        """What the files of the tree should have in them."""
        return [
            Content((path,), functools.partial(_has, path, size, crc), crc)
            for name, (size, crc) in sorted(self.sums.items())
            for path in [os.path.join(self.folder, name)]
        ]


def contents(prefix: str) -> list[Content]:
    """What the files of a tree should have in them.

    Args:
        prefix: That of an existing checkpoint.

    Raises:
        FileNotFoundError: It is not there.
        ValueError: Its main file is damaged.
    """
    return MainFile.of(prefix).contents()


def _sum(path: PathLike, is_new: bool = False) -> tuple[int, int]:
    """The size and the checksum of a file.

    Args:
        is_new: Whether it may be on its way to the disk yet. Orbax waits for
            the files of TensorStore alone. Defaults to `False`.
    """
    # Windows flushes only what may be written.
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
