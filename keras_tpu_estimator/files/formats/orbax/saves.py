"""Writes checkpoints as trees of Orbax, and reads them as what was written.

Orbax writes the folder 'model.ckpt-20.orbax.0f0f0f0f', which it reads without
this package. The main file 'model.ckpt-20.orbax' appears when all hosts have
written theirs: it has the checksums of all files in the folder, for Orbax has
none of whole files.
"""

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Self

import jax
import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.files.atomic import checksum
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.atomic import pieces
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.hdf5.shards import InTree
from keras_tpu_estimator.files.formats.intact import Content
from keras_tpu_estimator.files.formats.intact import are_intact
from keras_tpu_estimator.files.formats.missing import removed
from keras_tpu_estimator.files.formats.orbax.reader import OrbaxReader
from keras_tpu_estimator.files.formats.orbax.reader import needed
from keras_tpu_estimator.files.formats.reader import GLOBAL_STEP
from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.formats.reader import Stored
from keras_tpu_estimator.ground.base.index_ranges import IndexRanges
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage.urls import is_url


@dataclasses.dataclass(frozen=True)
class TreeArray:
    """A variable on the devices, on its way into a tree.

    Attributes:
        value: The array, of which every host writes what it has.
        dtype: The NumPy dtype that it is saved with.
        rows: How many of its rows are the variable's. Defaults to `None`, for
            all: those that follow are zeros, which Orbax writes, too.
    """

    value: jax.Array
    dtype: np.dtype
    rows: int | None = None


def check_can_write(directory: str) -> None:
    """Checks that trees can be written.

    Args:
        directory: Where.

    Raises:
        ValueError: It is a URL.
        ImportError: Orbax is not installed.
    """
    if is_url(directory):
        raise ValueError(
            "RunConfig(checkpoint_format='orbax') should be with a model_dir "
            f"of this machine or of a disk that it has. Received: "
            f"{directory!r}. Use 'hdf5', which is uploaded when it is whole."
        )
    with needed():
        import orbax.checkpoint  # noqa: F401


def begin(saved: SaveFiles) -> None:
    """Makes the folder, before any host writes into it."""
    paths.make_directory(os.path.dirname(saved.prefix))
    saved.make_tree()


def write_arrays(
    saved: SaveFiles, arrays: Mapping[str, TreeArray], step: int
) -> dict[str, InTree]:
    """Writes what this host has of variables, before training goes on.

    Args:
        saved: The files of the save, whose folder is there.
        arrays: All variables by path, the same on each host.
        step: The global step.

    Returns:
        What `write` is to be given when all hosts have written.
    """
    import orbax.checkpoint as ocp

    handler = ocp.PyTreeCheckpointHandler(use_compression=False)
    tree = {path: _alias(each.value) for path, each in arrays.items()}
    args = {
        path: ocp.SaveArgs(dtype=each.dtype) for path, each in arrays.items()
    }
    _save(
        handler,
        saved,
        {**tree, GLOBAL_STEP: np.array(step, np.int64)},
        {**args, GLOBAL_STEP: ocp.SaveArgs()},
    )
    return {path: InTree(each.rows) for path, each in arrays.items()}


def write(
    saved: SaveFiles, variables: Mapping[str, npt.ArrayLike | InTree]
) -> None:
    """Writes a tree, whole or not at all, or completes that of several hosts.

    Args:
        saved: The files of the save.
        variables: Arrays of numbers or booleans by variable path; or, if some
            are in the folder already, which all of them are then.

    Raises:
        TypeError: A value is not an array of numbers.
        ValueError: Orbax cannot save such an array.
        OSError: The disk is full, say.

    Example:

    >>> import tempfile
    >>> prefix = os.path.join(tempfile.mkdtemp(), "model.ckpt-3")
    >>> write(SaveFiles(prefix, "0f0f0f0f"), {"dense/bias": np.zeros(2)})
    >>> for name in sorted(os.listdir(os.path.dirname(prefix))):
    ...     print(name)
    model.ckpt-3.orbax
    model.ckpt-3.orbax.0f0f0f0f
    >>> TreeReader(prefix).get_tensor("dense/bias")
    array([0., 0.])
    """
    check_can_write(saved.prefix)
    import orbax.checkpoint as ocp

    rows = {
        path: each.rows
        for path, each in variables.items()
        if isinstance(each, InTree)
    }
    handler = ocp.PyTreeCheckpointHandler(
        # It takes as long as to write, memory, and a tenth off numbers.
        use_compression=False,
        multiprocessing_options=ocp.options.MultiprocessingOptions(
            # Nobody else writes into it.
            primary_host=0 if rows else None
        ),
    )
    if not rows:
        begin(saved)
        tree = {path: _array(path, v) for path, v in variables.items()}
        _save(handler, saved, tree, dict.fromkeys(tree, ocp.SaveArgs()))
    _told(saved, lambda: handler.finalize(_folder(saved)))
    cut = {path: count for path, count in rows.items() if count is not None}
    sums = {
        name: _sum(os.path.join(saved.tree, name), is_new=True)
        for name in sorted(_names(saved.tree))
    }
    for directory, _, _ in os.walk(saved.tree):
        commit.sync_directory(directory)
    with commit.replacing(saved.prefix + location.TREE) as partial:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump({"rows": cut, "files": sums}, file)
        checksum.append(partial, token=saved.token)


def contents(prefix: str) -> list[Content]:
    """What the files of a tree should have in them.

    Args:
        prefix: That of an existing checkpoint.

    Raises:
        FileNotFoundError: It is not there.
        ValueError: Its main file is damaged.
    """
    return _Main.of(prefix).contents()


def exists(path: str) -> bool:
    """Whether a path is that of such a checkpoint.

    Args:
        path: A prefix such as 'dir/model.ckpt-20', or the main file.
    """
    return paths.is_file(path.removesuffix(location.TREE) + location.TREE)


class TreeReader(CheckpointReader):
    """Reads a checkpoint that `write` has written.

    Args:
        path: A prefix such as 'dir/model.ckpt-20', or the main file.

    Raises:
        ValueError: A file is damaged. All are read to find out, for Orbax
            would not tell.
    """

    def __init__(self, path: str):
        self._prefix = path.removesuffix(location.TREE)
        self._main = main = _Main.of(self._prefix)
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
        super().__init__(path, listed)

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
        if wrong and not exists(self._prefix):
            raise removed(self._prefix)
        if wrong:
            names = [os.path.relpath(path, self._main.folder) for path in wrong]
            raise ValueError(
                f"The checkpoint {self._prefix!r} is truncated or damaged: "
                f"{names} of the folder {self._main.folder!r} are not as they "
                "were written. Copy it again if it is a copy; otherwise use "
                "another one."
            )

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Has who reads know that a checkpoint was removed meanwhile."""
        try:
            yield
        except ValueError as error:
            if exists(self._prefix):
                raise
            raise removed(self._prefix) from error


@dataclasses.dataclass(frozen=True)
class _Main:
    """What the main file of a tree says.

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

    def contents(self) -> list[Content]:
        """What the files of the tree should have in them."""
        return [
            Content((path,), functools.partial(_has, path, size, crc), crc)
            for name, (size, crc) in sorted(self.sums.items())
            for path in [os.path.join(self.folder, name)]
        ]


def _array(path: str, value: npt.ArrayLike | InTree) -> np.ndarray:
    array = np.asarray(value)
    # bfloat16 and its like are of kind V.
    if array.dtype.kind not in "biufcV":
        raise TypeError(
            f"The value of {path!r} should be an array of numbers or "
            f"booleans. Received one of dtype {array.dtype}."
        )
    return array


def _save(
    handler: Any,
    saved: SaveFiles,
    tree: Mapping[str, Any],
    save_args: Mapping[str, Any],
) -> None:
    import orbax.checkpoint as ocp

    empty = sorted(path for path, value in tree.items() if not value.size)
    if empty:
        raise ValueError(
            "Orbax saves no arrays without elements. Received: "
            f"{empty}. Use RunConfig(checkpoint_format='hdf5')."
        )
    args = ocp.args.PyTreeSave(item={**tree}, save_args={**save_args})
    _told(saved, lambda: handler.save(_folder(saved), args=args))


def _told(saved: SaveFiles, write_it: Callable[[], None]) -> None:
    """Writes; what TensorStore raises is not an error of the system."""
    try:
        write_it()
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise OSError(
            f"The checkpoint {saved.prefix!r} cannot be written by Orbax "
            f"({type(error).__name__}: {error})."
        ) from error


def _folder(saved: SaveFiles) -> Any:
    from etils import epath

    return epath.Path(os.path.abspath(saved.tree))


def _names(folder: str) -> Iterator[str]:
    for directory, _, names in os.walk(folder):
        for name in names:
            yield os.path.relpath(os.path.join(directory, name), folder)


def _alias(value: jax.Array) -> jax.Array:
    """Another array of the same buffers.

    An array keeps what was once fetched of it, here until this one is gone.
    """
    parts = [
        jax.make_array_from_single_device_arrays(
            shard.data.shape, shard.data.sharding, [shard.data]
        )
        for shard in value.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(
        value.shape, value.sharding, parts
    )


def _sum(path: str, is_new: bool = False) -> tuple[int, int]:
    """The size and the checksum of a file.

    Args:
        is_new: Whether it may be on its way to the disk yet. Orbax waits for
            the files of TensorStore alone. Defaults to `False`.
    """
    with open(path, "rb") as file:
        if is_new:
            os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        return size, pieces.crc_of(file.fileno(), 0, size)


def _has(path: str, size: int, crc: int) -> bool:
    try:
        return _sum(path) == (size, crc)
    except pieces.DamagedPieceError:
        return False
