"""Reads the checkpoints of Orbax, which flax, MaxText and Keras write."""

import contextlib
import os
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.formats.intact import are_intact
from keras_tpu_estimator.files.formats.orbax.main_file import MainFile
from keras_tpu_estimator.files.formats.reader import ArraysReader
from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.formats.reader import Stored
from keras_tpu_estimator.files.formats.reader import removed
from keras_tpu_estimator.files.formats.reader import unambiguous
from keras_tpu_estimator.ground.base.index_ranges import IndexRanges
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage.urls import is_url

# What a folder of arrays has, and one of a step with several such folders.
_TREE = "_METADATA"
_STEP = "_CHECKPOINT_METADATA"
_DEFAULT = "default"
# What a folder has whose arrays share files.
_OCDBT = "manifest.ocdbt"
# The parts of the tree that Keras's `OrbaxCheckpoint` saves a model in.
_KERAS_PARTS = re.compile(r"(non_)?trainable_variables/")


def exists(path: str) -> bool:
    """Whether a folder is a checkpoint of Orbax."""
    return bool(_trees(path))


def latest_step(path: str) -> str | None:
    """The checkpoint of the last step in the folder of Orbax's manager."""
    if not paths.is_directory(path):
        return None
    numbers = {
        int(found[0]): name
        for name in paths.names_in(path)
        if (found := re.search(r"\d+$", name))
    }
    folders = (os.path.join(path, numbers[n]) for n in sorted(numbers)[::-1])
    return next(filter(exists, folders), None)


class OrbaxReader(CheckpointReader):
    """Reads arrays by their paths in the tree: 'params/dense/kernel'.

    Items of a step that have names are the first part of a path, but for
    'default'. It may be left out where the rest is the name of one array; and
    so may what is before the path of a variable of Keras.
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
                name: Stored(tuple(leaf.shape), np.dtype(leaf.dtype))
                for name, (_, leaf) in arrays.items()
            }
        # What Orbax calls each, and in which item.
        self._places = {
            name: (item, leaf.name) for name, (item, leaf) in arrays.items()
        }
        aliases = unambiguous(
            (alias, name)
            for name in listed
            for alias in _shorter(name, self._items)
        )
        super().__init__(path, listed, aliases)

    def _read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        wanted = set(names)
        found: dict[str, np.ndarray] = {}
        for item, folder in self._items.items():
            with explained(self.path):
                found |= _read_tree(item, folder, self._metadata[item], wanted)
        return found

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
    """What an array may be called without what is not its own."""
    item, _, rest = name.partition("/")
    inner = rest if item in items and rest else name
    return {inner, _KERAS_PARTS.sub("", inner, count=1)} - {name}


def _read_tree(
    item: str, folder: str, metadata: Any, wanted: set[str]
) -> dict[str, np.ndarray]:
    """The arrays of one item that are wanted, by name."""
    import orbax.checkpoint as ocp

    leaves = [name for name, _ in _named(item, metadata)]
    if wanted.isdisjoint(leaves):
        return {}
    structure: Any = jax.tree.structure(metadata, is_leaf=_is_array)
    marks = [0 if name in wanted else ocp.PLACEHOLDER for name in leaves]
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
        for name, value in zip(
            leaves, structure.flatten_up_to(restored), strict=True
        )
        if name in wanted
    }


def handler() -> Any:
    with needed():
        import orbax.checkpoint as ocp
    return ocp.PyTreeCheckpointHandler()


def folder_of(path: str) -> Any:
    """A path as Orbax takes it; it opens those of stores itself."""
    from etils import epath

    return epath.Path(path if is_url(path) else os.path.abspath(path))


def _named(item: str, tree: Any) -> list[tuple[str, Any]]:
    """What a tree says of its arrays, by their names."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_array)
    front = "" if item == _DEFAULT else f"{item}/"
    return [
        (front + jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in leaves
    ]


def _is_array(node: Any) -> bool:
    """Whether metadata are those of an array; texts and empty ones are not."""
    return hasattr(node, "shape") and node.dtype is not None


def _trees(path: str) -> dict[str, str]:
    """The folders of arrays of a step, by the names of its items."""
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
    """Has an error in the `with` block say what to install."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            "Checkpoints of Orbax want Orbax, which is not installed, or is "
            f"too old ({error}). Run `pip install --upgrade orbax-checkpoint`."
        ) from error


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # TensorStore has errors of its own.
        raise ValueError(
            f"The checkpoint {path!r} is truncated or damaged, or Orbax cannot "
            f"read it ({_short(error)}). Copy it again if it "
            "is a copy; otherwise use another one."
        ) from error


def _short(error: Exception) -> str:
    """What an error says, without the settings of TensorStore."""
    text, _, _ = str(error).partition(" [")
    return f"{type(error).__name__}: {text}"


_LEGACY_TREE = "checkpoint"
# The first byte of a map of MessagePack is not of a text, as the list of
# checkpoints of that name is.
_LEAST_OF_MAPS = b"\x80"


def exists_legacy(path: str) -> bool:
    """Whether a folder is such a checkpoint."""
    tree = os.path.join(path, _LEGACY_TREE)
    if not paths.is_file(tree) or exists(path):
        return False
    with paths.opened(tree) as file:
        return file.read(1) >= _LEAST_OF_MAPS


class LegacyReader(ArraysReader):
    """Reads all arrays at once, for nothing else says what they are."""

    def __init__(self, path: str):
        with explained(path):
            tree = handler().restore(folder_of(path))
        super().__init__(tree)
        self.path = path


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
