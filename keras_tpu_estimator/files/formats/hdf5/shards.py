"""Variables whose shards are in files of the hosts that wrote them.

In the main file of a checkpoint such a variable is a virtual dataset, so other
programs read it like any other. HDF5 itself reads zeros for a missing shard,
and follows any file name. This package reads only files that the main file
lists in its attributes, each with its seal.
"""

import dataclasses
import os

import h5py
import numpy as np

from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.files.directory.save_names import SaveName


@dataclasses.dataclass(frozen=True)
class Shard:
    """A shard of a variable.

    Attributes:
        box: Its index ranges.
        file: The name of its file, beside the main file.
        key: The dataset in that file.
        seal: The `checksum.seal` of that file.
    """

    box: IndexRanges
    file: str
    key: str
    seal: int


@dataclasses.dataclass(frozen=True)
class Sharded:
    """A variable that is complete in no single file.

    Attributes:
        shards: Its shards.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    shards: tuple[Shard, ...]


@dataclasses.dataclass(frozen=True)
class InTree:
    """A variable that hosts have written into an Orbax folder.

    Attributes:
        rows: The number of its rows without padding. `None` means all.
    """

    rows: int | None = None


def create(
    file: h5py.File, key: str, variable: Sharded, bits: np.dtype
) -> h5py.Dataset:
    """Creates a virtual dataset for the shards of a variable.

    Args:
        file: The main file of a checkpoint, open for writing.
        key: The path of the dataset.
        bits: The stored dtype.
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
    """Returns the shards of a variable; none if a file is not listed.

    Args:
        dataset: A dataset made by `create`.
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
    """Returns the seals of a checkpoint's files, by name."""
    return {
        name: int(seal)
        for name, seal in file.attrs.items()
        if _is_part(name) and os.path.basename(name) == name
    }


def _is_part(name: str) -> bool:
    named = SaveName.of(name)
    return named is not None and named.kind == "part"


def _as_literal(name: str) -> str:
    """Escapes a name for HDF5, where '%b' means a number."""
    return name.replace("%", "%%")


def _from_literal(name: str) -> str:
    return name.replace("%%", "%")
