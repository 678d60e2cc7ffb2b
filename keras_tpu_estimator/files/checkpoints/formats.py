"""The formats that checkpoints are written in, by name."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from keras_tpu_estimator.files.checkpoints import files
from keras_tpu_estimator.files.checkpoints import location
from keras_tpu_estimator.files.checkpoints import orbax_saves
from keras_tpu_estimator.files.checkpoints import sealed
from keras_tpu_estimator.files.checkpoints import tensorflow_bundle
from keras_tpu_estimator.files.checkpoints.save_files import SaveFiles
from keras_tpu_estimator.files.checkpoints.shards import InTree
from keras_tpu_estimator.files.checkpoints.shards import Sharded

HDF5 = "hdf5"
TENSORFLOW = "tensorflow"
ORBAX = "orbax"

_MAIN_FILE = {
    HDF5: location.SUFFIX,
    TENSORFLOW: location.INDEX,
    ORBAX: location.TREE,
}
_WRITE: dict[str, Callable[[SaveFiles, Mapping[str, Any]], None]] = {
    HDF5: lambda saved, variables: files.write(
        saved.prefix + location.SUFFIX, variables, saved.token
    ),
    TENSORFLOW: tensorflow_bundle.write,
    ORBAX: orbax_saves.write,
}


def write(
    saved: SaveFiles,
    variables: Mapping[str, npt.ArrayLike | Sharded | InTree],
    format_name: str,
) -> None:
    """Writes a checkpoint, in place of one in any format.

    Args:
        saved: Its files.
        variables: Arrays of numbers or booleans by variable path; in HDF5 and
            as trees also what says where those of several hosts are.
        format_name: The name of the format.

    Raises:
        TypeError: A value is not an array of numbers.
        OSError: The disk is full, say.

    Example:

    >>> import os, tempfile
    >>> prefix = os.path.join(tempfile.mkdtemp(), "model.ckpt-3")
    >>> write(SaveFiles(prefix), {"bias": [0.0, 0.0]}, "hdf5")
    >>> write(SaveFiles(prefix), {"bias": [1.0, 1.0]}, "tensorflow")
    >>> os.path.basename(location.main_file(prefix))
    'model.ckpt-3.index'
    """
    with saved.replacing(saved.prefix + _MAIN_FILE[format_name]):
        _WRITE[format_name](saved, variables)


def check_can_write(format_name: str, directory: str) -> None:
    """Checks that checkpoints can be written, before there is one to write.

    Args:
        format_name: The name of the format.
        directory: Where.

    Raises:
        ValueError: Not there.
        ImportError: What writes them is not installed.
    """
    if format_name == ORBAX:
        orbax_saves.check_can_write(directory)


def trust(prefix: str) -> None:
    """Has `is_intact` believe in what this process and others have written.

    Args:
        prefix: That of the checkpoint.
    """
    if location.main_file(prefix) == prefix + location.TREE:
        orbax_saves.trust(prefix)
    else:
        sealed.trust(prefix)


def is_intact(prefix: str, host: int = 0, hosts: int = 1) -> bool:
    """Whether a checkpoint is as it was written.

    Args:
        prefix: Its prefix.
        host: As in `sealed.is_intact`. Defaults to 0.
        hosts: The same. Defaults to 1.

    Returns:
        `False` also if it is removed meanwhile.

    Example:

    >>> import os, tempfile
    >>> prefix = os.path.join(tempfile.mkdtemp(), "model.ckpt-3")
    >>> write(SaveFiles(prefix), {"bias": [0.0, 0.0]}, "hdf5")
    >>> is_intact(prefix)
    True
    """
    try:
        main = location.main_file(prefix)
        if main == prefix + location.TREE:
            return orbax_saves.is_intact(prefix, host, hosts)
        if main == prefix + location.SUFFIX:
            return sealed.is_intact(prefix, host, hosts)
        return tensorflow_bundle.is_intact(prefix)
    except FileNotFoundError:
        return False
