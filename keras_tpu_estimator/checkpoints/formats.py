"""The formats that checkpoints are written in, by name."""

import contextlib
import glob
import re
from collections.abc import Callable
from collections.abc import Mapping

import numpy.typing as npt

from keras_tpu_estimator.checkpoints import checksum
from keras_tpu_estimator.checkpoints import files
from keras_tpu_estimator.checkpoints import location
from keras_tpu_estimator.checkpoints import tensorflow_bundle
from keras_tpu_estimator.storage import paths

HDF5 = "hdf5"
TENSORFLOW = "tensorflow"

_MAIN_FILE = {HDF5: location.SUFFIX, TENSORFLOW: location.INDEX}
# Beside the index of a bundle.
_OTHERS = re.compile(r"\.(meta|data-[0-9]+-of-[0-9]+)")
_WRITE: dict[str, Callable[[str, Mapping[str, npt.ArrayLike]], None]] = {
    HDF5: lambda prefix, variables: files.write(
        prefix + location.SUFFIX, variables
    ),
    TENSORFLOW: tensorflow_bundle.write,
}


def write(
    prefix: str, variables: Mapping[str, npt.ArrayLike], format_name: str
) -> None:
    """Writes a checkpoint, in place of one in any format.

    Args:
        prefix: Its path, without the ends of its files.
        variables: Arrays of numbers or booleans by variable path.
        format_name: The name of the format.

    Raises:
        TypeError: A value is not an array of numbers.
        OSError: The disk is full, say.

    Example:

    >>> import os, tempfile
    >>> prefix = os.path.join(tempfile.mkdtemp(), "model.ckpt-3")
    >>> write(prefix, {"bias": [0.0, 0.0]}, "hdf5")
    >>> write(prefix, {"bias": [1.0, 1.0]}, "tensorflow")
    >>> os.path.basename(location.main_file(prefix))
    'model.ckpt-3.index'
    """
    _WRITE[format_name](prefix, variables)
    remove(prefix, kept=prefix + _MAIN_FILE[format_name])


def remove(prefix: str, kept: str | None = None) -> None:
    """Removes the files of a checkpoint, whichever there are.

    Args:
        prefix: The path of a checkpoint, without '.h5' or '.index'.
        kept: The main file of another kind that is not removed. Defaults to
            None.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> prefix = checkpoints.save(tempfile.mkdtemp(), 20, {})
    >>> remove(prefix)
    >>> location.exists(prefix)
    False
    """
    main_files = (prefix + end for end in _MAIN_FILE.values())
    gone = [f for f in main_files if f != kept and paths.is_file(f)]
    index = prefix + location.INDEX
    if index in gone:
        found = paths.matching(glob.escape(prefix) + ".*")
        # After the index, which says that they are whole.
        gone += [f for f in found if _OTHERS.fullmatch(f.removeprefix(prefix))]
    for path in gone:
        with contextlib.suppress(FileNotFoundError):
            paths.remove(path)


def is_intact(prefix: str) -> bool:
    """Whether a checkpoint is as it was written.

    Args:
        prefix: That of an existing one.

    Example:

    >>> import os, tempfile
    >>> prefix = os.path.join(tempfile.mkdtemp(), "model.ckpt-3")
    >>> write(prefix, {"bias": [0.0, 0.0]}, "hdf5")
    >>> is_intact(prefix)
    True
    """
    path = prefix + location.SUFFIX
    if location.main_file(prefix) == path:
        return checksum.is_intact(path)
    return tensorflow_bundle.is_intact(prefix)
