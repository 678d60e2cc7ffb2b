"""The checkpoint file: named variables in HDF5, followed by checksums."""

import os
from collections.abc import Iterable
from collections.abc import Mapping

import h5py
import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.files.checkpoints import checksum
from keras_tpu_estimator.files.checkpoints import commit
from keras_tpu_estimator.files.checkpoints import encoding
from keras_tpu_estimator.files.checkpoints import pieces
from keras_tpu_estimator.files.checkpoints.opened_checkpoint import opened
from keras_tpu_estimator.files.checkpoints.shards import Sharded
from keras_tpu_estimator.files.checkpoints.sparse import SparseFile
from keras_tpu_estimator.files.checkpoints.stamp import NO_TOKEN
from keras_tpu_estimator.files.checkpoints.stored import Stored
from keras_tpu_estimator.ground.base.types import PathLike

GLOBAL_STEP = "global_step"

# HDF5 puts its structures together in blocks of so many bytes.
_STRUCTURE_BLOCK = 16 << 10


def write(
    path: str,
    variables: Mapping[str, npt.ArrayLike | Sharded],
    token: str = NO_TOKEN,
) -> None:
    """Writes variables into a file, whole or not at all.

    Args:
        path: The file to make or replace.
        variables: Arrays of numbers or booleans by variable path. Whatever
            `np.asarray` understands will do. Of those whose parts are in
            other files, where they are.
        token: That of the save that the file belongs to. Defaults to that of
            none.

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
    arrays = {
        name: each if isinstance(each, Sharded) else np.asarray(each, order="C")
        for name, each in variables.items()
    }
    write_file(
        path,
        arrays,
        (
            (name, each)
            for name, each in sorted(arrays.items())
            if not isinstance(each, Sharded)
        ),
        token,
    )


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
    with opened(checkpoint_path) as checkpoint:
        return sorted(checkpoint.describe())


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
    with opened(checkpoint_path) as checkpoint:
        return checkpoint.describe()


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
    with opened(checkpoint_path) as checkpoint:
        checkpoint.hold()
        return checkpoint.read(paths)


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
    checksum.trust(path)
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
