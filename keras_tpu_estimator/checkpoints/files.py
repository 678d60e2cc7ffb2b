"""The checkpoint file: named variables in HDF5, followed by checksums."""

import contextlib
import dataclasses
import difflib
import os
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

import h5py
import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.base.types import PathLike
from keras_tpu_estimator.checkpoints import checksum
from keras_tpu_estimator.checkpoints import commit
from keras_tpu_estimator.checkpoints import encoding
from keras_tpu_estimator.checkpoints import location
from keras_tpu_estimator.checkpoints import pieces
from keras_tpu_estimator.checkpoints.sparse import SparseFile
from keras_tpu_estimator.checkpoints.stored import Stored
from keras_tpu_estimator.storage.copies import local_copy

GLOBAL_STEP = "global_step"

# HDF5 puts its structures together in blocks of so many bytes.
_STRUCTURE_BLOCK = 16 << 10


class VariableNotFoundError(KeyError):
    """A checkpoint has no variable of the name asked for.

    Args:
        message: What was asked for, and what the checkpoint has.

    Example:

    >>> try:
    ...     raise VariableNotFoundError("no 'kernel'")
    ... except KeyError as error:
    ...     print(error)
    no 'kernel'
    """

    def __str__(self) -> str:
        # `KeyError` would show the message in quotes, with its quotes escaped.
        return self.args[0]


def write(path: str, variables: Mapping[str, npt.ArrayLike]) -> None:
    """Writes variables into a file, whole or not at all.

    Args:
        path: The file to make or replace.
        variables: Arrays of numbers or booleans by variable path. Whatever
            `np.asarray` understands will do.

    Raises:
        TypeError: A value is not an array of numbers.
        OSError: The disk is full, say.

    Example:

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model.ckpt-3.h5")
    >>> write(path, {"dense/bias": np.zeros(2), "global_step": np.int64(3)})
    >>> names(path)
    ['dense/bias', 'global_step']
    """
    with commit.replacing(path, is_kept=True) as partial:
        checksum.append(partial, _write(partial, variables))
    checksum.trust(path)


def names(checkpoint_path: PathLike) -> list[str]:
    """Lists the variables of a checkpoint.

    Args:
        checkpoint_path: A prefix, a file, or a directory of checkpoints.

    Returns:
        Variable paths, sorted, 'global_step' among them.

    Raises:
        ValueError: There is no such checkpoint, or its file is damaged.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> names(checkpoints.save(tempfile.mkdtemp(), 20, {"bias": np.ones(2)}))
    ['bias', 'global_step']
    """
    with _opened(checkpoint_path) as opened:
        return sorted(_all(opened.file))


def describe(
    checkpoint_path: PathLike,
) -> dict[str, Stored]:
    """Tells shapes and dtypes of the variables of a checkpoint.

    Args:
        checkpoint_path: A prefix, a file, or a directory of checkpoints.

    Returns:
        What is stored, by variable path.

    Raises:
        ValueError: There is no such checkpoint, or its file is damaged.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> prefix = checkpoints.save(tempfile.mkdtemp(), 20, {"b": np.ones(2)})
    >>> describe(prefix)["b"]
    Stored(shape=(2,), dtype=dtype('float64'))
    """
    with _opened(checkpoint_path) as opened:
        return {
            path: Stored(dataset.shape, encoding.dtype_of(path, dataset))
            for path, dataset in _all(opened.file).items()
        }


def read(
    checkpoint_path: PathLike,
    paths: Iterable[str] | None = None,
) -> dict[str, np.ndarray]:
    """Reads variables from a checkpoint.

    Args:
        checkpoint_path: A prefix, a file, or a directory of checkpoints.
        paths: The variables to read. None, the default, is all.

    Returns:
        Their values by path, with the dtypes and shapes that were saved.

    Raises:
        VariableNotFoundError: The checkpoint lacks one of `paths`.
        ValueError: There is no such checkpoint, or its file is damaged.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> prefix = checkpoints.save(tempfile.mkdtemp(), 20, {"b": np.ones(2)})
    >>> read(prefix, ["b"])
    {'b': array([1., 1.])}
    """
    with _opened(checkpoint_path) as opened:
        wanted = sorted(_all(opened.file)) if paths is None else list(paths)
        datasets = _named(opened.file, wanted)
        missing = [path for path in wanted if path not in datasets]
        if missing:
            raise VariableNotFoundError(
                explain_missing(missing, sorted(datasets), checkpoint_path)
            )
        return opened.read({path: datasets[path] for path in wanted})


def explain_missing(
    missing: list[str],
    there: list[str],
    checkpoint_path: PathLike,
) -> str:
    """Says that variables are not there, and which have names like theirs.

    Args:
        missing: The variables that were asked for.
        there: Those that the checkpoint has.
        checkpoint_path: The checkpoint.

    Returns:
        Sentences for an error message.

    Example:

    >>> explain_missing(["biases"], ["bias", "kernel"], "/model.ckpt-20")
    "The checkpoint '/model.ckpt-20' has no variable 'biases'. Close to the
    first: 'bias'."
    """
    near = difflib.get_close_matches(missing[0], there, n=5, cutoff=0.5)
    hint = "Close to the first" if near else "Among those that it has"
    return (
        f"The checkpoint {os.fsdecode(checkpoint_path)!r} has no variable "
        f"{_listed(missing)}. {hint}: {_listed(near or there)}."
    )


def _write(
    path: str, variables: Mapping[str, npt.ArrayLike]
) -> list[pieces.Piece]:
    """Writes structure and data; returns the pieces of the data."""
    sparse = SparseFile()
    # The format of HDF5 1.10 is written in half the time of the oldest.
    with h5py.File(
        sparse,
        "w",
        libver=("v110", "v110"),
        meta_block_size=_STRUCTURE_BLOCK,
    ) as file:
        extents = encoding.lay_out(file, variables)
    with open(path, "wb") as file:
        for offset, page in sparse.pages():
            file.seek(offset)
            file.write(page)
        file.truncate(sparse.seek(0, os.SEEK_END))
    return pieces.write(path, extents)


@dataclasses.dataclass(frozen=True)
class _Opened:
    """A checkpoint whose structure is as it was written.

    Attributes:
        path: The file.
        file: The same, open.
        written: The pieces that its data were written in, by offset.
    """

    path: str
    file: h5py.File
    written: Mapping[int, pieces.Piece]

    def read(
        self, datasets: Mapping[str, h5py.Dataset]
    ) -> dict[str, np.ndarray]:
        """Reads datasets by the paths of their variables, and checks them."""
        arrays, extents = {}, []
        for path, dataset in datasets.items():
            encoding.check(path, dataset)
            offset = dataset.id.get_offset()
            if offset in self.written:
                arrays[path] = np.empty(dataset.shape, dataset.dtype)
                extents.append(pieces.Extent.of(offset, arrays[path]))
            else:
                # It is empty, or of another program, and was checked with the
                # structure. h5py gives a scalar as a NumPy number, of the
                # machine's byte order.
                arrays[path] = np.asarray(dataset[()], dataset.dtype)
        pieces.read(self.path, extents, self.written)
        return {
            path: encoding.decode(path, datasets[path], array)
            for path, array in arrays.items()
        }


@contextlib.contextmanager
def _opened(checkpoint_path: PathLike) -> Iterator[_Opened]:
    """Opens a checkpoint whose structure is as it was written."""
    path = location.resolve(checkpoint_path) + location.SUFFIX
    copy = local_copy(path)
    written = checksum.load(copy.path)
    if written is None:
        raise _damaged(path, "its checksum is wrong or missing")
    try:
        # A file never changes once it has its name, so nothing need be locked;
        # some network file systems cannot.
        with h5py.File(copy.path, "r", locking=False) as file:
            yield _Opened(copy.path, file, written)
    except (VariableNotFoundError, FileNotFoundError, PermissionError):
        raise
    except (
        OSError,
        RuntimeError,
        KeyError,
        pieces.DamagedPieceError,
    ) as error:
        raise _damaged(path, error) from error


def _named(file: h5py.File, paths: list[str]) -> dict[str, h5py.Dataset]:
    """At least those of the datasets of these variables that are there."""
    found = {path: encoding.find_plain(file, path) for path in paths}
    return _all(file) if None in found.values() else found


def _all(file: h5py.File) -> dict[str, h5py.Dataset]:
    """All datasets by variable path."""
    found: dict[str, h5py.Dataset] = {}

    def collect(key: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            found[encoding.path_of(key, item)] = item

    # This follows no links, which may lead to other files.
    file.visititems(collect)
    return found


def _damaged(path: str, reason: str | Exception) -> ValueError:
    return ValueError(
        f"The checkpoint file {path!r} is truncated or damaged, or was not "
        f"written by this package ({reason}). Copy it again if it is a copy; "
        "otherwise delete it and use another one. "
        f"{location.alternatives(path)}"
    )


def _listed(paths: list[str], limit: int = 10) -> str:
    more = len(paths) - limit
    suffix = f" and {more} more" if more > 0 else ""
    return ", ".join(map(repr, paths[:limit])) + suffix
