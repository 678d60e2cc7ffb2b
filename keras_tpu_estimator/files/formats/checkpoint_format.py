"""The formats in which checkpoints are written, by name."""

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy.typing as npt

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.files.directory import layouts
from keras_tpu_estimator.files.directory.layouts import Layout
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats import reader, tensorflow_format
from keras_tpu_estimator.files.formats.hdf5 import reader as hdf5_reader
from keras_tpu_estimator.files.formats.hdf5 import writer as hdf5_writer
from keras_tpu_estimator.files.formats.hdf5.encoding import InTree, Sharded
from keras_tpu_estimator.files.formats.orbax import reader as orbax_main
from keras_tpu_estimator.files.formats.orbax import writer as orbax_writer
from keras_tpu_estimator.files.formats.orbax.reader import TreeReader
from keras_tpu_estimator.files.formats.reader import CheckpointReader, Content
from keras_tpu_estimator.files.formats.tensorflow_format import TensorFlowReader

HDF5 = "hdf5"
TENSORFLOW = "tensorflow"
ORBAX = "orbax"


class Shards(enum.Enum):
    """The way in which each process writes the shards that it has.

    `FILES` is a separate file, before training continues. `FOLDER` is a folder of all
    processes, while training continues.
    """

    FILES = enum.auto()
    FOLDER = enum.auto()


@dataclasses.dataclass(frozen=True)
class CheckpointFormat:
    """A format in which checkpoints are written.

    Attributes:
        layout: The names of its files.
        read: Opens the checkpoint at a prefix.
        write: Writes variables by path, replacing a checkpoint in any format.
        contents: Returns the expected content of the checkpoint's files; raises
            `ValueError` if its main file is corrupt.
        check_can_write: Raises an error if no checkpoint can be written into a
            directory.
        shards: The way in which processes write shards. If it is `None`, the first
            process writes complete variables.
    """

    layout: Layout
    read: Callable[[str], CheckpointReader]
    write: Callable[[SaveFiles, Mapping[str, Any]], None]
    contents: Callable[[str], Iterable[Content]]
    check_can_write: Callable[[str], None] = lambda directory: None
    shards: Shards | None = None


_FORMATS = {
    HDF5: CheckpointFormat(
        layouts.HDF5,
        hdf5_reader.Hdf5Reader,
        hdf5_writer.write,
        hdf5_reader.contents,
        shards=Shards.FILES,
    ),
    TENSORFLOW: CheckpointFormat(
        layouts.TENSORFLOW,
        TensorFlowReader,
        tensorflow_format.write,
        tensorflow_format.contents,
    ),
    ORBAX: CheckpointFormat(
        layouts.ORBAX,
        TreeReader,
        orbax_writer.write,
        orbax_main.contents,
        orbax_writer.check_can_write,
        Shards.FOLDER,
    ),
}


def register(name: str, new: CheckpointFormat) -> None:
    """Adds a format: `RunConfig(checkpoint_format=name)` then writes it.

    If two main files exist for a moment, those of earlier formats are preferred. A
    known name or ending raises `ValueError`.
    """
    known = {*_FORMATS, *layouts.endings()}
    taken = {name, new.layout.ending} & known
    if taken:
        raise ValueError(
            "A checkpoint format must have a new name and a new ending of its main "
            f"file. Received: {name!r} and {new.layout.ending!r}, of which "
            f"{sorted(taken)} are in use. Choose others."
        )
    layouts.LAYOUTS.append(new.layout)
    _FORMATS[name] = new


def names() -> tuple[str, ...]:
    """Returns the names of all formats."""
    return tuple(_FORMATS)


def format_of(prefix: str) -> CheckpointFormat | None:
    """Returns the format of the existing checkpoint at a prefix, or `None`."""
    layout = layouts.layout_at(prefix)
    return next((each for each in _FORMATS.values() if each.layout is layout), None)


def write(
    saved: SaveFiles,
    variables: Mapping[str, npt.ArrayLike | Sharded | InTree],
    format_name: str,
) -> None:
    """Writes a checkpoint, replacing a checkpoint in any format.

    `variables` has arrays by path; in HDF5 also `Sharded`, and in Orbax checkpoints
    also `InTree`, for variables that hosts have written.
    """
    written = named(format_name)
    with saved.replacing(written.layout):
        written.write(saved, variables)
        reader.trust(written.contents(saved.prefix))


def check_can_write(format_name: str, directory: str) -> None:
    """Raises an error if the format, its package or the directory is unusable."""
    named(format_name).check_can_write(directory)


def named(format_name: str) -> CheckpointFormat:
    """Returns a format by its name, or raises `ValueError` if the name is unknown."""
    if format_name not in _FORMATS:
        raise ValueError(
            f"The checkpoint format must be one of {[*names()]}. Received: "
            f"{shown(format_name)}. Leave it out for {HDF5!r}."
        )
    return _FORMATS[format_name]


def is_intact(prefix: str, host: int = 0, hosts: int = 1) -> bool:
    """Returns whether a checkpoint is unchanged since it was written.

    Each of the `hosts` reads its share of the files. The result is also `False` if the
    checkpoint is removed meanwhile.
    """
    contents = _contents(prefix)
    return bool(contents) and reader.are_intact(contents, host, hosts)


def trust(prefix: str) -> None:
    """Marks a checkpoint that was just written as intact, for `is_intact`."""
    reader.trust(_contents(prefix))


def _contents(prefix: str) -> list[Content]:
    """Returns the expected content; none if the main file is corrupt."""
    found = format_of(prefix)
    try:
        return [] if found is None else list(found.contents(prefix))
    except (FileNotFoundError, ValueError):
        return []
