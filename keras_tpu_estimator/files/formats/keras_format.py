"""Reads the files of Keras: '.weights.h5', and the weights in '.keras'."""

import contextlib
import zipfile
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import h5py
import numpy as np

from keras_tpu_estimator.files.formats import keras_names
from keras_tpu_estimator.files.formats.hdf5 import encoding
from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.formats.reader import Stored
from keras_tpu_estimator.files.formats.reader import unambiguous
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage.copies import local_copy

_ARCHIVE = ".keras"
_WEIGHTS = ".weights.h5"
_MEMBER = "model.weights.h5"
_VARS = "vars"


def exists(path: str) -> bool:
    """Whether a path is that of a Keras file, by its name.

    Args:
        path: Any path.

    Returns:
        True for an existing '.weights.h5' or '.keras' file.

    Example:

    >>> exists("/nowhere/model.weights.h5")
    False
    """
    return path.endswith((_ARCHIVE, _WEIGHTS)) and paths.is_file(path)


class KerasReader(CheckpointReader):
    """Reads what `save_weights` and `save` of a Keras model wrote.

    Nothing but arrays is read: no model is built, and no code of the file run.
    A variable may also be called by its number in the layer ('dense/0'), with
    the model's name in front ('sequential/dense/kernel'), and by its key in the
    file ('layers/dense/vars/0').

    Args:
        path: A '.weights.h5' or '.keras' file.

    Raises:
        ValueError: The file is damaged, or none of Keras.
    """

    def __init__(self, path: str):
        with _opened(path) as file:
            found, layer_names = _survey(file)
            stored = {
                key: Stored(dataset.shape, _dtype_of(key, dataset))
                for key, dataset in found.items()
            }
        names = keras_names.variable_names(
            {key: one.shape for key, one in stored.items()}, layer_names
        )
        self._keys = {name: key for key, name in names.items()}
        super().__init__(
            path,
            {names[key]: one for key, one in stored.items()},
            _aliases(names, layer_names),
        )

    def _read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        with _opened(self.path) as file:
            return {
                name: _read_one(name, file[self._keys[name]]) for name in names
            }


def _aliases(
    names: Mapping[str, str], layer_names: Mapping[str, str]
) -> dict[str, str]:
    pairs = []
    for key, name in names.items():
        group, _, number = key.rpartition(f"{_VARS}/")
        layer = keras_names.layer_path(group.removesuffix("/"), layer_names)
        pairs += [(key, name), (f"{layer}/{number}", name)]
        if "" in layer_names:
            pairs.append((f"{layer_names['']}/{name}", name))
    return unambiguous(pairs)


def _survey(
    file: h5py.File,
) -> tuple[dict[str, h5py.Dataset], dict[str, str]]:
    """The datasets of a file, and the names of its layers."""
    found: dict[str, h5py.Dataset] = {}
    layer_names: dict[str, str] = {}

    def collect(key: str, item: h5py.Group | h5py.Dataset) -> None:
        path = key.split("/")
        if isinstance(item, h5py.Dataset):
            if _VARS not in path[-2:-1]:
                raise ValueError(f"{key!r} is not in a group {_VARS!r}")
            found[key] = item
        elif path[-1] == _VARS and isinstance(item.attrs.get("name"), str):
            layer_names["/".join(path[:-1])] = item.attrs["name"]

    # This follows no links, which may lead to other files.
    file.visititems(collect)
    return found, layer_names


def _read_one(name: str, dataset: h5py.Dataset) -> np.ndarray:
    if dataset.external or dataset.is_virtual:
        raise ValueError(f"the values of {name!r} lie in another file")
    if dataset.id.get_storage_size() < dataset.nbytes:
        raise ValueError(
            f"{name!r} has {dataset.id.get_storage_size()} bytes, where its "
            f"shape {dataset.shape} needs {dataset.nbytes}"
        )
    dtype = _dtype_of(name, dataset)
    return np.asarray(dataset[()], dataset.dtype).view(dtype)


def _dtype_of(name: str, dataset: h5py.Dataset) -> np.dtype:
    """The dtype, of which Keras stores the name where HDF5 has none for it."""
    dtype = encoding.dtype_of(name, dataset)
    # 2 is what NumPy says of dtypes that another package registered.
    are_numbers = dtype.kind in "biufc" or dtype.isbuiltin == 2
    if not are_numbers or dtype.itemsize != dataset.dtype.itemsize:
        raise ValueError(f"{name!r} holds no numbers, but {dataset.dtype}")
    return dtype


@contextlib.contextmanager
def _opened(path: str) -> Iterator[h5py.File]:
    """Opens the HDF5 file that a Keras file is or contains."""
    copy = local_copy(path)
    try:
        with contextlib.ExitStack() as stack:
            source: object = copy.path
            if path.endswith(_ARCHIVE):
                archive = stack.enter_context(zipfile.ZipFile(copy.path))
                source = stack.enter_context(archive.open(_MEMBER))
            yield stack.enter_context(h5py.File(source, "r", locking=False))
    except (FileNotFoundError, PermissionError):
        raise
    except (
        OSError,
        RuntimeError,
        KeyError,
        ValueError,
        zipfile.BadZipFile,
    ) as error:
        raise ValueError(
            f"The file {path!r} is truncated or damaged, or was not written by "
            f"Keras 3 ({error}). Copy it again if it is a copy; otherwise save "
            "the model again with `save_weights` or `save`."
        ) from error
