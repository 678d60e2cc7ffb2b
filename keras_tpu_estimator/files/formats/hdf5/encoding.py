"""Encoding of a variable as an HDF5 dataset, without executable content.

Each variable is one dataset at the variable's path: 'dense/kernel' is dataset
'kernel' of group 'dense'. Three cases differ:

* HDF5 lacks dtypes such as bfloat16 and float8. Such an array is stored as
  unsigned integers with the same bits, and attribute `dtype` has its name.
* A variable that was sharded over devices is a virtual dataset. Its shards are
  in other files, as described in `shards`.
* HDF5 does not support some paths: 'a' beside 'a/b', which makes 'a' a group,
  or
  a component that is empty or '.'. Such a variable is stored at the top as
  '%0', '%1' and so on, and attribute `path` has its path. Paths that start with
  '%' are stored in the same way.
"""

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping

import h5py
import ml_dtypes  # noqa: F401, because it names its dtypes to NumPy
import numpy as np

from keras_tpu_estimator.files.formats.hdf5 import shards
from keras_tpu_estimator.files.formats.hdf5.shards import Sharded
from keras_tpu_estimator.files.formats.reader import Stored


def lay_out(
    file: h5py.File, variables: Mapping[str, np.ndarray | Stored | Sharded]
) -> dict[str, int]:
    """Allocates variables in an empty HDF5 file, and writes only scalars.

    Callers write the other values faster than HDF5, without holding Python's
    lock.

    Args:
        variables: By path, arrays; or descriptions of arrays that are not
            scalars;
            or the locations of shards.

    Returns:
        The offset of each value in the closed file, by path.

    Raises:
        TypeError: A value is not an array of numbers or booleans.

    Example:

    >>> import io
    >>> with h5py.File(io.BytesIO(), "w") as file:
    ...     offsets = lay_out(
    ...         file, {"dense": np.zeros(1), "dense/bias": np.zeros(2)})
    ...     sorted(file), sorted(file["dense"]), file["%0"].attrs["path"]
    (['%0', 'dense'], ['bias'], 'dense')
    >>> sorted(offsets)
    ['dense', 'dense/bias']
    """
    offsets = {}
    for path, key in keys(variables).items():
        value = variables[path]
        bits, extension = _bits(path, value.dtype)
        if isinstance(value, Sharded):
            dataset = shards.create(file, key, value, bits)
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

    Example:

    >>> keys(["dense/bias", "dense"])
    {'dense': '%0', 'dense/bias': 'dense/bias'}
    """
    paths = sorted(paths)
    groups = {group for path in paths for group in _parents(path)}
    given = {}
    numbers = itertools.count()
    for path in paths:
        is_plain = path not in groups and _fits_hdf5(path)
        given[path] = path if is_plain else f"%{next(numbers)}"
    return given


def path_of(key: str, dataset: h5py.Dataset) -> str:
    """Returns the path of the variable in a dataset.

    Example:

    >>> import io
    >>> with h5py.File(io.BytesIO(), "w") as file:
    ...     offsets = lay_out(file, {"%a": np.zeros(1)})
    ...     path_of("%0", file["%0"])
    '%a'
    """
    return dataset.attrs.get("path", key)


def find_plain(file: h5py.File, path: str) -> h5py.Dataset | None:
    """Finds the dataset of a variable that is stored under its own path.

    The result is `None` if it is missing or stored under another name. Links
    are not followed, because they may lead to other files.

    Example:

    >>> import io
    >>> with h5py.File(io.BytesIO(), "w") as file:
    ...     offsets = lay_out(file, {"a/b": np.zeros(2), "%a": np.zeros(1)})
    ...     find_plain(file, "a/b").shape, find_plain(file, "%a")
    ((2,), None)
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
    """Checks that a dataset can hold a variable.

    Raises:
        ValueError: The dataset does not contain numbers, has fewer than it
            declares,
            or only refers to another file.

    Example:

    >>> import io
    >>> with h5py.File(io.BytesIO(), "w") as file:
    ...     check("a", file.create_dataset("a", data=np.ones(2)), "file")
    """
    if dataset.external or (dataset.is_virtual and not shards.of(dataset)):
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
    """Returns the content of a dataset with the dtype that was saved.

    Raises:
        ValueError: The dtype is unknown to the installed ml_dtypes.

    Example:

    >>> import io
    >>> with h5py.File(io.BytesIO(), "w") as file:
    ...     offsets = lay_out(file, {"a": np.ones(2, "bfloat16")})
    ...     decode("a", file["a"], np.full(2, 0x3F80, "uint16"))
    array([1, 1], dtype=bfloat16)
    """
    extension = dataset.attrs.get("dtype")
    return array if extension is None else array.view(_named(path, extension))


def dtype_of(path: str, dataset: h5py.Dataset) -> np.dtype:
    """Returns the dtype of a variable, without reading its values.

    Raises:
        ValueError: The dtype is unknown to the installed ml_dtypes.

    Example:

    >>> import io
    >>> with h5py.File(io.BytesIO(), "w") as file:
    ...     offsets = lay_out(file, {"a": np.ones(2, "bfloat16")})
    ...     dtype_of("a", file["a"])
    dtype(bfloat16)
    """
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
