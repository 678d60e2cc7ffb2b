"""Readers of Orbax checkpoints, including those of flax, MaxText and Keras.

The main file, such as 'model.ckpt-20.orbax', contains the checksums of all files in the
folder, because Orbax has no checksums of complete files, and facts about variables that
Orbax does not store.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np

from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.paths import is_url
from keras_tpu_estimator.files.atomic import checksum, commit
from keras_tpu_estimator.files.directory import layouts
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.reader import (
    ArraysReader,
    CheckpointReader,
    FileContent,
    StoredVariable,
    are_intact,
    removed,
    unambiguous,
)

# The name of the folder that Orbax writes.
FOLDER = "orbax"


@dataclasses.dataclass(frozen=True)
class MainFile:
    """The content of the main file: facts about the folder that Orbax wrote.

    `rows` has the number of rows without padding for padded variables. `sums` has the
    size and the checksum of each file, by name.
    """

    path: str
    folder: str
    rows: Mapping[str, int]
    sums: Mapping[str, tuple[int, int]]

    @classmethod
    def at(cls, prefix: str) -> Self:
        """Reads the main file of a prefix, or raises `ValueError` if it is corrupt."""
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
        content, _ = json.JSONDecoder().raw_decode(text)
        return cls(path, saved.named(FOLDER), content["rows"], content["files"])

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

    def contents(self) -> list[FileContent]:
        """Returns the expected content of the files in the folder."""
        return [
            FileContent((path,), functools.partial(_has, path, size, crc), crc)
            for name, (size, crc) in sorted(self.sums.items())
            for path in [os.path.join(self.folder, name)]
        ]


def contents(prefix: str) -> list[FileContent]:
    """Returns the expected content of an existing checkpoint's files."""
    return MainFile.at(prefix).contents()


def _sum(path: PathLike, is_new: bool = False) -> tuple[int, int]:
    """Returns the size and the checksum of a file.

    A new file may not be on the disk yet, because Orbax waits only for the files of
    TensorStore.
    """
    # Windows flushes only files that are open for writing.
    with open(path, "rb+" if is_new else "rb") as file:
        if is_new:
            os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        return size, checksum.crc_of(file.fileno(), 0, size)


def _has(path: str, size: int, crc: int) -> bool:
    try:
        return _sum(path) == (size, crc)
    except checksum.CorruptPieceError:
        return False


# The file that marks a folder of arrays, and the file of a step with such
# folders.
_TREE = "_METADATA"
_STEP = "_CHECKPOINT_METADATA"
_DEFAULT = "default"
# The file in a folder whose arrays share files.
_OCDBT = "manifest.ocdbt"
# The subtrees in which Keras's `OrbaxCheckpoint` saves a model.
_KERAS_PARTS = re.compile(r"(non_)?trainable_variables/")


def exists(path: str) -> bool:
    """Returns whether a folder is an Orbax checkpoint."""
    return bool(_trees(path))


def latest_step(path: str) -> str | None:
    """Returns the last checkpoint in a folder of Orbax's manager."""
    if not paths.is_directory(path):
        return None
    numbers = {
        int(match[0]): name
        for name in paths.names_in(path)
        if (match := re.search(r"\d+$", name))
    }
    folders = (os.path.join(path, numbers[n]) for n in sorted(numbers)[::-1])
    return next(filter(exists, folders), None)


class OrbaxReader(CheckpointReader):
    """A reader of arrays by their paths in the pytree: 'params/dense/kernel'.

    The path begins with the name of the item, except for the item 'default'. The item
    may be omitted if the rest names only one array. The part before the path of a Keras
    variable may be omitted in the same way.
    """

    def __init__(self, path: str):
        self._items = _trees(path)
        with explained(path):
            self._metadata = {
                item: handler().metadata(folder_of(folder)).tree
                for item, folder in self._items.items()
            }
            arrays = {
                name: (item, leaf)
                for item, tree in self._metadata.items()
                for name, leaf in _named(item, tree)
                if _is_array(leaf)
            }
            listed = {
                name: StoredVariable(tuple(leaf.shape), np.dtype(leaf.dtype))
                for name, (_, leaf) in arrays.items()
            }
        # The item of each array, and its name there.
        self._places = {
            name: (item, leaf.name) for name, (item, leaf) in arrays.items()
        }
        aliases = unambiguous(
            (alias, name) for name in listed for alias in _shorter(name, self._items)
        )
        super().__init__(path, listed, aliases)

    def _read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        requested = set(names)
        arrays: dict[str, np.ndarray] = {}
        for item, folder in self._items.items():
            with explained(self.path):
                arrays |= _read_tree(item, folder, self._metadata[item], requested)
        return arrays

    def _read_part(self, name: str, box: IndexRanges) -> np.ndarray:
        if is_url(self.path):
            return super()._read_part(name, box)
        with explained(self.path):
            import tensorstore

            item, inner = self._places[name]
            folder = self._items[item]
            base = {"driver": "file", "path": os.path.join(folder, "")}
            kvstore = {"driver": "ocdbt", "base": base, "path": f"{inner}/"}
            if not paths.is_file(os.path.join(folder, _OCDBT)):
                kvstore = {**base, "path": os.path.join(folder, inner, "")}
            spec = {"driver": "auto", "kvstore": kvstore}
            opened = tensorstore.open(spec, read=True).result()
            return opened[box.slices].read().result()


def _shorter(name: str, items: Iterable[str]) -> set[str]:
    """Returns the names of an array without its item or Keras's subtree."""
    item, _, inner_name = name.partition("/")
    inner = inner_name if item in items and inner_name else name
    return {inner, _KERAS_PARTS.sub("", inner, count=1)} - {name}


def _read_tree(
    item: str, folder: str, metadata: Any, requested: set[str]
) -> dict[str, np.ndarray]:
    """Returns the requested arrays of one item, by name."""
    import orbax.checkpoint as ocp

    leaves = [name for name, _ in _named(item, metadata)]
    if requested.isdisjoint(leaves):
        return {}
    structure: Any = jax.tree.structure(metadata, is_leaf=_is_array)
    marks = [0 if name in requested else ocp.PLACEHOLDER for name in leaves]
    restored = handler().restore(
        folder_of(folder),
        args=ocp.args.PyTreeRestore(
            item=structure.unflatten(marks),
            restore_args=structure.unflatten(
                [ocp.RestoreArgs(restore_type=np.ndarray)] * len(leaves)
            ),
        ),
    )
    return {
        name: np.asarray(value)
        for name, value in zip(leaves, structure.flatten_up_to(restored), strict=True)
        if name in requested
    }


def handler() -> Any:
    with needed():
        import orbax.checkpoint as ocp
    return ocp.PyTreeCheckpointHandler()


def folder_of(path: str) -> Any:
    """Returns a path for Orbax, which opens URLs itself."""
    from etils import epath

    return epath.Path(path if is_url(path) else os.path.abspath(path))


def _named(item: str, tree: Any) -> list[tuple[str, Any]]:
    """Returns the names and metadata of the arrays in a tree."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_array)
    front = "" if item == _DEFAULT else f"{item}/"
    return [
        (front + jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in leaves
    ]


def _is_array(node: Any) -> bool:
    """Returns whether metadata describe an array, not a text or nothing."""
    return hasattr(node, "shape") and node.dtype is not None


def _trees(path: str) -> dict[str, str]:
    """Returns the folders of arrays of a step, by the names of its items."""
    if paths.is_file(os.path.join(path, _TREE)):
        return {_DEFAULT: path}
    if not paths.is_file(os.path.join(path, _STEP)):
        return {}
    folders = {item: os.path.join(path, item) for item in paths.names_in(path)}
    return {
        item: folder
        for item, folder in sorted(folders.items())
        if paths.is_file(os.path.join(folder, _TREE))
    }


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Adds installation advice to import errors in the `with` block."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            "Orbax checkpoints need Orbax, which is not installed or too old "
            f"({error}). Run `pip install --upgrade orbax-checkpoint`."
        ) from error


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # TensorStore has its own errors.
        raise ValueError(
            f"The checkpoint {path!r} is truncated or corrupt, or Orbax "
            f"cannot read it ({_short(error)}). Copy it again if it is a "
            "copy; otherwise use another one."
        ) from error


def _short(error: Exception) -> str:
    """Returns the message of an error without TensorStore's settings."""
    text, _, _ = str(error).partition(" [")
    return f"{type(error).__name__}: {text}"


_LEGACY_TREE = "checkpoint"
# The first byte of a MessagePack map, which no text file has. The list of
# checkpoints has the same name and is a text file.
_LEAST_OF_MAPS = b"\x80"


def exists_legacy(path: str) -> bool:
    """Returns whether a folder is an Orbax checkpoint of old programs of flax.

    A file `checkpoint` in the folder contains the tree and small arrays. Other arrays
    are in their own folders.
    """
    tree = os.path.join(path, _LEGACY_TREE)
    if not paths.is_file(tree) or exists(path):
        return False
    with paths.opened(tree) as file:
        return file.read(1) >= _LEAST_OF_MAPS


class LegacyReader(ArraysReader):
    """A reader of old checkpoints, which reads all arrays at once."""

    def __init__(self, path: str):
        with explained(path):
            tree = handler().restore(folder_of(path))
        super().__init__(tree)
        self.path = path


class TreeReader(CheckpointReader):
    """A reader of an Orbax checkpoint that this package wrote.

    All files are read to detect corruption, because Orbax does not report it.
    """

    def __init__(self, prefix: str):
        self._prefix = prefix
        self._main = main = MainFile.at(prefix)
        self._check()
        self._tree = OrbaxReader(main.folder)
        stored = self._tree.by_any_name()
        self._rows = main.rows
        listed = {
            name: StoredVariable(
                self._cut(name, stored[name].shape), stored[name].dtype
            )
            for name in self._tree.get_variable_to_shape_map()
        }
        super().__init__(prefix, listed)

    def _cut(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        rows = self._rows.get(name)
        return shape if rows is None else (rows, *shape[1:])

    def _read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        with self._removal_reported():
            arrays = self._tree.get_tensors(names)
        return {
            name: value[: self._rows[name]] if name in self._rows else value
            for name, value in arrays.items()
        }

    def _read_part(self, name: str, box: IndexRanges) -> np.ndarray:
        with self._removal_reported():
            return self._tree.get_part(name, box.slices)

    def _check(self) -> None:
        """Raises an error if files have changed since they were written."""
        contents = self._main.contents()
        wrong = [content.files[0] for content in contents if not are_intact([content])]
        if wrong and not self._is_there:
            raise removed(self._prefix)
        if wrong:
            names = [os.path.relpath(path, self._main.folder) for path in wrong]
            raise ValueError(
                f"The checkpoint {self._prefix!r} is truncated or corrupt: "
                f"{names} in the folder {self._main.folder!r} have changed "
                "since they were written. Copy it again if it is a copy; "
                "otherwise use another one."
            )

    @property
    def _is_there(self) -> bool:
        return paths.is_file(layouts.ORBAX.main(self._prefix))

    @contextlib.contextmanager
    def _removal_reported(self) -> Iterator[None]:
        """Raises a clear error if the checkpoint was removed meanwhile."""
        try:
            yield
        except ValueError as error:
            if self._is_there:
                raise
            raise removed(self._prefix) from error


def opened(path: str) -> CheckpointReader | None:
    """Returns a reader if a folder is a checkpoint of Orbax or of old flax."""
    if exists(path):
        return OrbaxReader(path)
    return LegacyReader(path) if exists_legacy(path) else None
