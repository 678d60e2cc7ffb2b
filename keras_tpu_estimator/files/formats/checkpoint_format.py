"""The formats that checkpoints are written in, by name."""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats import intact
from keras_tpu_estimator.files.formats.hdf5 import reader as hdf5_reader
from keras_tpu_estimator.files.formats.hdf5 import writer as hdf5_writer
from keras_tpu_estimator.files.formats.hdf5.shards import InTree
from keras_tpu_estimator.files.formats.hdf5.shards import Sharded
from keras_tpu_estimator.files.formats.intact import Content
from keras_tpu_estimator.files.formats.orbax import main_file as orbax_main
from keras_tpu_estimator.files.formats.orbax import writer as orbax_writer
from keras_tpu_estimator.files.formats.orbax.reader import TreeReader
from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.formats.tensorflow import (
    writer as tensorflow_writer,
)
from keras_tpu_estimator.files.formats.tensorflow.reader import TensorFlowReader
from keras_tpu_estimator.ground.base.shown import shown

HDF5 = "hdf5"
TENSORFLOW = "tensorflow"
ORBAX = "orbax"


@dataclasses.dataclass(frozen=True)
class CheckpointFormat:
    """A format that checkpoints are written in.

    Attributes:
        ending: What the name of a main file has behind the prefix.
        read: Opens the checkpoint of a prefix.
        write: Writes variables by path, in place of a checkpoint in any format.
        contents: What the files of the checkpoint of a prefix should have in
            them; `ValueError` if its main file makes no sense.
        check_can_write: Raises if none can be written into a directory.
            Defaults to a check that passes.
    """

    ending: str
    read: Callable[[str], CheckpointReader]
    write: Callable[[SaveFiles, Mapping[str, Any]], None]
    contents: Callable[[str], Iterable[Content]]
    check_can_write: Callable[[str], None] = lambda directory: None


_FORMATS = {
    HDF5: CheckpointFormat(
        location.SUFFIX,
        hdf5_reader.Hdf5Reader,
        hdf5_writer.write,
        hdf5_reader.contents,
    ),
    TENSORFLOW: CheckpointFormat(
        location.INDEX,
        TensorFlowReader,
        tensorflow_writer.write,
        tensorflow_writer.contents,
    ),
    ORBAX: CheckpointFormat(
        location.TREE,
        TreeReader,
        orbax_writer.write,
        orbax_main.contents,
        orbax_writer.check_can_write,
    ),
}


def format_of(prefix: str) -> CheckpointFormat | None:
    """The format of the checkpoint that there is for a prefix.

    Args:
        prefix: Its path, without the ends of its files.

    Example:

    >>> format_of("/nowhere/model.ckpt-20") is None
    True
    """
    main = location.main_file(prefix)
    return next(
        (each for each in _FORMATS.values() if main == prefix + each.ending),
        None,
    )


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
    written = _named(format_name)
    with saved.replacing(saved.prefix + written.ending):
        written.write(saved, variables)
        intact.trust(written.contents(saved.prefix))


def check_can_write(format_name: str, directory: str) -> None:
    """Checks that checkpoints can be written, before there is one to write.

    Args:
        format_name: The name of the format.
        directory: Where.

    Raises:
        ValueError: There is no such format, or it is not written there.
        ImportError: What writes them is not installed.
    """
    _named(format_name).check_can_write(directory)


def _named(format_name: str) -> CheckpointFormat:
    if format_name not in _FORMATS:
        raise ValueError(
            f"A format of checkpoints should be one of {[*_FORMATS]}. "
            f"Received: {shown(format_name)}. Leave it out for {HDF5!r}."
        )
    return _FORMATS[format_name]


def is_intact(prefix: str, host: int = 0, hosts: int = 1) -> bool:
    """Whether a checkpoint is as it was written.

    Args:
        prefix: Its prefix.
        host: As in `intact.are_intact`. Defaults to 0.
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
    contents = _contents(prefix)
    return bool(contents) and intact.are_intact(contents, host, hosts)


def trust(prefix: str) -> None:
    """Has `is_intact` believe in what this process and others have written.

    Args:
        prefix: That of the checkpoint.
    """
    intact.trust(_contents(prefix))


def _contents(prefix: str) -> list[Content]:
    """What its files should have in them; none if it makes no sense."""
    found = format_of(prefix)
    try:
        return [] if found is None else list(found.contents(prefix))
    except (FileNotFoundError, ValueError):
        return []
