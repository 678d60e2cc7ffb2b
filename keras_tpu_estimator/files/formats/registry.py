"""The registered checkpoint formats by name, and the checkpoints in them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from keras_tpu_estimator.base.common import registry as parts
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.files.directory import layouts
from keras_tpu_estimator.files.directory.layouts import Layout
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats import reader
from keras_tpu_estimator.files.formats.checkpoint_format import CheckpointFormat
from keras_tpu_estimator.files.formats.reader import FileContent
from keras_tpu_estimator.files.formats.shards import ShardedVariable

HDF5 = "hdf5"
TENSORFLOW = "tensorflow"
ORBAX = "orbax"

# The layouts of all formats by name. Those of this package are known before a format
# is used.
_LAYOUTS: dict[str, Layout] = {
    HDF5: layouts.HDF5,
    TENSORFLOW: layouts.TENSORFLOW,
    ORBAX: layouts.ORBAX,
}
# The formats that have been registered or used.
_FORMATS: dict[str, CheckpointFormat] = {}


def register_format(name: str, new: CheckpointFormat) -> None:
    """Adds a format: `RunConfig(checkpoint_format=name)` then writes it.

    Every process calls it once, before it reads or writes checkpoints. If two
    main files exist for a moment, those of earlier formats are preferred.

    Args:
        name: A new name.
        new: The format, whose main file has a new ending.

    Raises:
        TypeError: `new` is not a `CheckpointFormat` with a `Layout`.
        ValueError: The name or the ending is in use.

    Example:

    >>> from keras_tpu_estimator import checkpoints
    >>> try:
    ...     checkpoints.register_format("my_format", "MyFormat")
    ... except TypeError as error:
    ...     print(str(error)[-28:])
    Pass an object, not a class.
    """
    if not (
        isinstance(new, CheckpointFormat)
        and isinstance(getattr(new, "layout", None), Layout)
    ):
        raise TypeError(
            "`new` must be an object of a subclass of "
            "`kte.checkpoints.CheckpointFormat`, whose `layout` is a "
            f"`kte.checkpoints.Layout`. Received: {shown(new)}. Pass an object, "
            "not a class."
        )
    endings = {layout.ending for layout in _LAYOUTS.values()}
    in_use = {name, new.layout.ending} & {*_LAYOUTS, *endings}
    if in_use:
        raise ValueError(
            "A checkpoint format must have a new name and a new ending of its main "
            f"file. Received: {name!r} and {new.layout.ending!r}, of which "
            f"{sorted(in_use)} are in use. Choose others."
        )
    if new.layout not in layouts.LAYOUTS:
        layouts.LAYOUTS.append(new.layout)
    _LAYOUTS[name], _FORMATS[name] = new.layout, new


def names() -> tuple[str, ...]:
    """Returns the names of all formats."""
    return tuple(_LAYOUTS)


def format_at(prefix: str) -> CheckpointFormat | None:
    """Returns the format of the existing checkpoint at a prefix, or `None`."""
    layout = layouts.layout_at(prefix)
    matches = (name for name, value in _LAYOUTS.items() if value is layout)
    name = next(matches, None)
    return None if name is None else named(name)


def write(
    files: SaveFiles,
    variables: Mapping[str, npt.ArrayLike | ShardedVariable],
    format_name: str,
    receipts: Sequence[Any] = (),
) -> None:
    """Writes a checkpoint, replacing a checkpoint in any format.

    `variables` has arrays by path, and descriptions of the variables whose shards all
    processes have written, with their `receipts`.
    """
    file_format = named(format_name)
    with files.replacing(file_format.layout):
        file_format.write(files, variables, receipts)
        reader.trust(file_format.contents(files.prefix))


def check_can_write(format_name: str, directory: str) -> None:
    """Raises an error if the format, its package or the directory is unusable."""
    named(format_name).check_can_write(directory)


def named(format_name: str) -> CheckpointFormat:
    """Returns a format by its name, or raises `ValueError` if the name is unknown."""
    if format_name not in _LAYOUTS:
        raise ValueError(
            f"The checkpoint format must be one of {[*names()]}. Received: "
            f"{shown(format_name)}. Leave it out for {HDF5!r}."
        )
    if format_name not in _FORMATS:
        _FORMATS[format_name] = parts.part(f"checkpoint format {format_name}")()
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


def _contents(prefix: str) -> list[FileContent]:
    """Returns the expected content; none if the main file is corrupt."""
    file_format = format_at(prefix)
    try:
        return [] if file_format is None else list(file_format.contents(prefix))
    except (FileNotFoundError, ValueError):
        return []
