"""The checkpoint file: named variables in HDF5, followed by checksums."""

import os
from collections.abc import Iterable
from collections.abc import Mapping

import h5py
import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.files.atomic import checksum
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.atomic import pieces
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.hdf5 import encoding
from keras_tpu_estimator.files.formats.hdf5.shards import Sharded
from keras_tpu_estimator.files.formats.hdf5.sparse import SparseFile
from keras_tpu_estimator.files.formats.reader import Stored

# HDF5 puts its structures together in blocks of so many bytes.
_STRUCTURE_BLOCK = 16 << 10


def write(
    saved: SaveFiles, variables: Mapping[str, npt.ArrayLike | Sharded]
) -> None:
    """Writes the main file of a save, whole or not at all.

    Args:
        saved: The files of the save.
        variables: Arrays of numbers or booleans by variable path. Whatever
            `np.asarray` understands will do. Of those whose parts are in
            other files, where they are.

    Raises:
        TypeError: A value is not an array of numbers.
        OSError: The disk is full, say.

    Example:

    >>> import os, tempfile
    >>> prefix = os.path.join(tempfile.mkdtemp(), "model.ckpt-3")
    >>> write(SaveFiles(prefix), {"dense/bias": np.zeros(2)})
    >>> with h5py.File(prefix + ".h5") as file:
    ...     file["dense/bias"]
    <HDF5 dataset "bias": shape (2,), type "<f8">
    """
    arrays = {
        name: each if isinstance(each, Sharded) else np.asarray(each, order="C")
        for name, each in variables.items()
    }
    values = (
        (name, each)
        for name, each in sorted(arrays.items())
        if not isinstance(each, Sharded)
    )
    path = saved.prefix + location.SUFFIX
    write_file(path, arrays, values, saved.token)


def write_file(
    path: str,
    variables: Mapping[str, np.ndarray | Stored | Sharded],
    values: Iterable[tuple[str, np.ndarray]],
    token: str,
) -> int:
    """Writes a file, whole or not at all, one value after the other.

    Args:
        path: The file to make or replace.
        variables: What will be in it, as for `encoding.lay_out`.
        values: The values of all arrays that are no scalars, by path.
        token: That of the save that the file belongs to.

    Returns:
        What `checksum.seal` gives for it.

    Raises:
        TypeError: A value is not an array of numbers.
        OSError: The disk is full, say.
    """
    with commit.replacing(path, is_kept=True) as partial:
        offsets = _write_structure(partial, variables)
        seal = checksum.append(
            partial,
            [
                piece
                for name, value in values
                if name in offsets
                for piece in pieces.write(
                    partial, [pieces.Extent.of(offsets[name], value)]
                )
            ],
            token,
        )
    return seal


def _write_structure(
    path: str, variables: Mapping[str, np.ndarray | Stored | Sharded]
) -> dict[str, int]:
    """Writes all but the data; returns where they belong, by path."""
    sparse = SparseFile()
    # The format of HDF5 1.10 is written in half the time of the oldest.
    with h5py.File(
        sparse,
        "w",
        libver=("v110", "v110"),
        meta_block_size=_STRUCTURE_BLOCK,
    ) as file:
        offsets = encoding.lay_out(file, variables)
    with open(path, "wb") as file:
        for offset, page in sparse.pages():
            file.seek(offset)
            file.write(page)
        file.truncate(sparse.seek(0, os.SEEK_END))
    return offsets
