"""Encoding of a variable as an HDF5 dataset, without executable content.

Each variable is one dataset at the variable's path: 'dense/kernel' is dataset
'kernel' of group 'dense'. Three cases differ:

* HDF5 lacks dtypes such as bfloat16 and float8. Such an array is stored as
  unsigned integers with the same bits, and attribute `dtype` has its name.
* A variable that was sharded over devices is a virtual dataset, so other programs read
  it like any other. Its shards are in files of the hosts that wrote them. HDF5 itself
  reads zeros for a missing shard, and follows any file name. This package reads only
  files that the main file lists in its attributes, each with its seal.
* HDF5 does not support some paths: 'a' beside 'a/b', which makes 'a' a group, or
  a component that is empty or '.'. Such a variable is stored at the top as
  '%0', '%1' and so on, and attribute `path` has its path. Paths that start with
  '%' are stored in the same way.
"""

import contextlib
import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping

import h5py
import ml_dtypes  # noqa: F401, because it names its dtypes to NumPy
import numpy as np

from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.files.directory.layouts import SaveName
from keras_tpu_estimator.files.formats.reader import StoredVariable


@dataclasses.dataclass(frozen=True)
class Shard:
    """A shard of a variable: its index ranges, and the dataset `key` of a file.

    The file is beside the main file, and `seal` is its `checksum.seal`.
    """

    box: IndexRanges
    file: str
    key: str
    seal: int


@dataclasses.dataclass(frozen=True)
class Sharded:
    """A variable that is complete in no single file."""

    shape: tuple[int, ...]
    dtype: np.dtype
    shards: tuple[Shard, ...]


def create(
    file: h5py.File, key: str, variable: Sharded, bits: np.dtype
) -> h5py.Dataset:
    """Creates a virtual dataset for a variable's shards; `bits` is the stored dtype."""
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


def shards_of(dataset: h5py.Dataset) -> tuple[Shard, ...]:
    """Returns the shards of a dataset from `create`; none if a file is not listed."""
    seals = seals_of(dataset.file)
    shards = []
    for source in dataset.virtual_sources():
        name = _from_literal(source.file_name)
        if name not in seals:
            return ()
        first, last = source.vspace.get_select_bounds()
        box = IndexRanges(tuple(first), tuple(end + 1 for end in last))
        key = _from_literal(source.dset_name)
        shards.append(Shard(box, name, key, seals[name]))
    return tuple(shards)


def seals_of(file: h5py.File) -> dict[str, int]:
    """Returns the seals of a checkpoint's files, by name."""
    return {
        name: int(seal)
        for name, seal in file.attrs.items()
        if _is_part(name) and os.path.basename(name) == name
    }


def _is_part(name: str) -> bool:
    named = SaveName.parse(name)
    return named is not None and named.kind == "part"


def _as_literal(name: str) -> str:
    """Escapes a name for HDF5, where '%b' means a number."""
    return name.replace("%", "%%")


def _from_literal(name: str) -> str:
    return name.replace("%%", "%")


def lay_out(
    file: h5py.File, variables: Mapping[str, np.ndarray | StoredVariable | Sharded]
) -> dict[str, int]:
    """Allocates variables in an empty HDF5 file, and returns their offsets by path.

    Only scalars are written, so a `StoredVariable` must not describe a scalar. Callers
    write the other values faster than HDF5, without holding Python's lock.
    """
    offsets = {}
    for path, key in keys(variables).items():
        value = variables[path]
        bits, extension = _bits(path, value.dtype)
        if isinstance(value, Sharded):
            dataset = create(file, key, value, bits)
        elif math.prod(value.shape) and value.shape:
            dataset = file.create_dataset(key, value.shape, bits, dcpl=_at_once())
            offsets[path] = dataset.id.get_offset()
        else:
            dataset = file.create_dataset(key, data=np.asarray(value).view(bits))
        if extension is not None:
            dataset.attrs["dtype"] = extension
        if key != path:
            dataset.attrs["path"] = path
    return offsets


def keys(paths: Iterable[str]) -> dict[str, str]:
    """Returns the dataset path of each variable path of a file.

    >>> keys(["dense/bias", "dense"])
    {'dense': '%0', 'dense/bias': 'dense/bias'}
    """
    paths = sorted(paths)
    groups = {group for path in paths for group in _parents(path)}
    keys_by_path = {}
    numbers = itertools.count()
    for path in paths:
        is_plain = path not in groups and _fits_hdf5(path)
        keys_by_path[path] = path if is_plain else f"%{next(numbers)}"
    return keys_by_path


def path_of(key: str, dataset: h5py.Dataset) -> str:
    """Returns the path of the variable in a dataset."""
    return dataset.attrs.get("path", key)


def find_plain(file: h5py.File, path: str) -> h5py.Dataset | None:
    """Finds the dataset of a variable that is stored under its own path.

    The result is `None` if it is missing or stored under another name. Links are not
    followed, because they may lead to other files.
    """
    if not _fits_hdf5(path):
        return None
    item: h5py.Group | h5py.Dataset = file
    for part in path.split("/"):
        link = isinstance(item, h5py.Group) and item.get(part, getlink=True)
        if not isinstance(link, h5py.HardLink):
            return None
        item = item[part]
    return item if isinstance(item, h5py.Dataset) else None


def check(path: str, dataset: h5py.Dataset, file: str) -> None:
    """Raises `ValueError` if values are not numbers, missing, or in unlisted files."""
    if dataset.external or (dataset.is_virtual and not shards_of(dataset)):
        raise ValueError(
            f"The values of variable {path!r} of {file!r} are in another "
            "file, which is not read. Use a checkpoint that this package "
            "wrote."
        )
    if not _is_native(dataset.dtype):
        raise ValueError(
            f"Variable {path!r} of {file!r} must contain numbers or booleans. "
            f"Received: {dataset.dtype}. Use a checkpoint that this package "
            "wrote."
        )
    stored = dataset.id.get_storage_size()
    if stored != dataset.nbytes and not dataset.is_virtual:
        raise ValueError(
            f"Variable {path!r} of {file!r} must have {dataset.nbytes} bytes. "
            f"Received a file with {stored} of them. Use a checkpoint that "
            "this package wrote."
        )


def decode(path: str, dataset: h5py.Dataset, array: np.ndarray) -> np.ndarray:
    """Returns a dataset's content with the saved dtype, which ml_dtypes must know."""
    extension = dataset.attrs.get("dtype")
    return array if extension is None else array.view(_named(path, extension))


def dtype_of(path: str, dataset: h5py.Dataset) -> np.dtype:
    """Returns a variable's dtype, without its values; ml_dtypes must know it."""
    extension = dataset.attrs.get("dtype")
    if extension is None:
        return dataset.dtype.newbyteorder("=")
    return _named(path, extension)


def _parents(path: str) -> Iterator[str]:
    return itertools.accumulate(path.split("/")[:-1], "{}/{}".format)


def _fits_hdf5(path: str) -> bool:
    parts = path.split("/")
    return not path.startswith("%") and "" not in parts and "." not in parts


def _bits(path: str, dtype: np.dtype) -> tuple[np.dtype, str | None]:
    """Returns an HDF5 dtype of the same size, and the original's name."""
    if _is_native(dtype):
        return dtype, None
    if not _is_extension(dtype):
        raise TypeError(
            f"Variable {path!r} must be an array of numbers or booleans to be "
            f"saved. Received dtype {dtype}. Keep such values out of the "
            "model's variables."
        )
    return np.dtype(f"u{dtype.itemsize}"), dtype.name


def _at_once() -> h5py.h5p.PropDCID:
    """Returns settings that allocate a dataset when it is created."""
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.CONTIGUOUS)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return layout


def _named(path: str, extension: str) -> np.dtype:
    with contextlib.suppress(TypeError):
        dtype = np.dtype(extension)
        if _is_extension(dtype):
            return dtype
    raise ValueError(
        f"Variable {path!r} was saved as {extension!r}, a dtype unknown to the "
        "installed ml_dtypes. Install the version of ml_dtypes that the "
        "checkpoint was saved with, or a newer one."
    )


def _is_native(dtype: np.dtype) -> bool:
    return dtype.kind in "biufc" and not _is_extension(dtype)


def _is_extension(dtype: np.dtype) -> bool:
    # NumPy returns 2 for dtypes that another package registered.
    return dtype.isbuiltin == 2
