"""The formats that checkpoints are written in, by name."""

import contextlib
import glob
import os
import re
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from keras_tpu_estimator.checkpoints import files
from keras_tpu_estimator.checkpoints import location
from keras_tpu_estimator.checkpoints import sealed
from keras_tpu_estimator.checkpoints import shards
from keras_tpu_estimator.checkpoints import tensorflow_bundle
from keras_tpu_estimator.checkpoints.shards import Sharded
from keras_tpu_estimator.storage import paths

HDF5 = "hdf5"
TENSORFLOW = "tensorflow"

_MAIN_FILE = {HDF5: location.SUFFIX, TENSORFLOW: location.INDEX}
# Beside the index of a bundle.
_OTHERS = re.compile(r"\.(meta|data-[0-9]+-of-[0-9]+)")
_WRITE: dict[str, Callable[[str, Mapping[str, Any]], None]] = {
    HDF5: lambda prefix, variables: files.write(
        prefix + location.SUFFIX, variables
    ),
    TENSORFLOW: tensorflow_bundle.write,
}


def write(
    prefix: str,
    variables: Mapping[str, npt.ArrayLike | Sharded],
    format_name: str,
) -> None:
    """Writes a checkpoint, in place of one in any format.

    Args:
        prefix: Its path, without the ends of its files.
        variables: Arrays of numbers or booleans by variable path; in HDF5
            also what says in which files parts of them are.
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
    directory = os.path.dirname(prefix)
    shard_files = {
        os.path.join(directory, shard.file)
        for each in variables.values()
        if isinstance(each, Sharded)
        for shard in each.shards
    }
    remove(prefix, kept={prefix + _MAIN_FILE[format_name], *shard_files})


def remove(prefix: str, kept: Collection[str] = ()) -> None:
    """Removes the files of a checkpoint, whichever there are.

    Args:
        prefix: The path of a checkpoint, without '.h5' or '.index'.
        kept: Those of another one that are not removed: its main file and
            others. Defaults to none.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> prefix = checkpoints.save(tempfile.mkdtemp(), 20, {})
    >>> remove(prefix)
    >>> location.exists(prefix)
    False
    """
    main_files = (prefix + end for end in _MAIN_FILE.values())
    gone = [f for f in main_files if f not in kept and paths.is_file(f)]
    is_bundle = prefix + location.INDEX in gone
    # After the main file, which says that they are whole.
    for path in paths.matching(glob.escape(prefix) + ".*"):
        is_of_bundle = _OTHERS.fullmatch(path.removeprefix(prefix))
        is_shard = shards.prefix_of(path) == prefix and path not in kept
        if (is_bundle and is_of_bundle) or is_shard:
            gone.append(path)
    for path in gone:
        with contextlib.suppress(FileNotFoundError):
            paths.remove(path)


def is_intact(prefix: str, host: int = 0, hosts: int = 1) -> bool:
    """Whether a checkpoint is as it was written.

    Args:
        prefix: That of an existing one.
        host: As in `sealed.is_intact`. Defaults to 0.
        hosts: The same. Defaults to 1.

    Example:

    >>> import os, tempfile
    >>> prefix = os.path.join(tempfile.mkdtemp(), "model.ckpt-3")
    >>> write(prefix, {"bias": [0.0, 0.0]}, "hdf5")
    >>> is_intact(prefix)
    True
    """
    path = prefix + location.SUFFIX
    if location.main_file(prefix) == path:
        return sealed.is_intact(prefix, host, hosts)
    return tensorflow_bundle.is_intact(prefix)
