"""Variables whose parts are in files of the hosts that had them.

In the main file of a checkpoint such a variable is a virtual dataset, so that
other programs read it as any other. HDF5 itself takes a part that is missing
for zeros, and follows any name; here only files are read that the main file
lists in its attributes, each with the seal that it had.
"""

import dataclasses
import os

import h5py
import numpy as np

from keras_tpu_estimator.files.directory.save_names import SaveName
from keras_tpu_estimator.ground.base.index_ranges import IndexRanges


@dataclasses.dataclass(frozen=True)
class Shard:
    """A part of a variable.

    Attributes:
        box: Which one.
        file: The name of the file that it is in, beside the main file.
        key: The dataset in it.
        seal: What tells that file from others, as `checksum.seal` does.
    """

    box: IndexRanges
    file: str
    key: str
    seal: int


@dataclasses.dataclass(frozen=True)
class Sharded:
    """A variable that no file has whole.

    Attributes:
        shape: Its shape.
        dtype: Its NumPy dtype.
        shards: Its parts.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    shards: tuple[Shard, ...]


@dataclasses.dataclass(frozen=True)
class InTree:
    """A variable that hosts have written into a folder of Orbax.

    Attributes:
        rows: How many of its rows are its own. Defaults to `None`, for all.
    """

    rows: int | None = None


def create(
    file: h5py.File, key: str, variable: Sharded, bits: np.dtype
) -> h5py.Dataset:
    """Makes a dataset that stands for the parts of a variable.

    Args:
        file: The main file of a checkpoint, open for writing.
        key: Where the dataset shall be.
        variable: The variable.
        bits: The dtype that it is stored as.
    """
    layout = h5py.VirtualLayout(variable.shape, bits)
    for shard in variable.shards:
        layout[shard.box.slices] = h5py.VirtualSource(
            _as_literal(shard.file),
            _as_literal(shard.key),
            shard.box.shape,
            bits,
        )
        file.attrs[shard.file] = np.uint32(shard.seal)
    return file.create_virtual_dataset(key, layout)


def of(dataset: h5py.Dataset) -> tuple[Shard, ...]:
    """The parts of a variable; none if the files are not ones to be read.

    Args:
        dataset: One of those that `create` makes.
    """
    seals = seals_of(dataset.file)
    found = []
    for source in dataset.virtual_sources():
        name = _from_literal(source.file_name)
        if name not in seals:
            return ()
        first, last = source.vspace.get_select_bounds()
        box = IndexRanges(tuple(first), tuple(end + 1 for end in last))
        key = _from_literal(source.dset_name)
        found.append(Shard(box, name, key, seals[name]))
    return tuple(found)


def seals_of(file: h5py.File) -> dict[str, int]:
    """The files that belong to the main file of a checkpoint.

    Args:
        file: The main file.

    Returns:
        What tells each of them from others, by name.
    """
    return {
        name: int(seal)
        for name, seal in file.attrs.items()
        if _is_part(name) and os.path.basename(name) == name
    }


def _is_part(name: str) -> bool:
    named = SaveName.of(name)
    return named is not None and named.kind == "part"


def _as_literal(name: str) -> str:
    """A name as HDF5 wants those of sources, where '%b' would be a number."""
    return name.replace("%", "%%")


def _from_literal(name: str) -> str:
    return name.replace("%%", "%")
