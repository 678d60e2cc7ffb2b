"""Reader of Keras's files: '.weights.h5', and the weights in '.keras'.

Keras files number their variables: 'vars/0', 'vars/1' and so on, in a group
whose path consists of attributes and of the classes of layers. The group's
attribute `name` is the layer's name. This module names the variable
'layers/dense_3/vars/0' of a layer called 'query' 'query/kernel': it uses layer
names, omits containers, and names variables as Keras's layers do. An
`EstimatorModel` stores all its variables under their paths.
"""

import collections
import contextlib
import re
import urllib.parse
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence

import h5py
import numpy as np

from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.transfers import local_copy
from keras_tpu_estimator.files.formats.hdf5 import encoding
from keras_tpu_estimator.files.formats.reader import (
    CheckpointReader,
    StoredVariable,
    unambiguous,
)

_ARCHIVE = ".keras"
_WEIGHTS = ".weights.h5"
_MEMBER = "model.weights.h5"
_VARS = "vars"


def exists(path: str) -> bool:
    """Returns whether a path is an existing Keras file, by its name."""
    return path.endswith((_ARCHIVE, _WEIGHTS)) and paths.is_file(path)


class KerasReader(CheckpointReader):
    """A reader of files that `save_weights` and `save` of a Keras model wrote.

    It reads only arrays: it builds no model and runs no code of the file. A variable
    also has the name of its number in the layer ('dense/0'), the name with the model's
    name in front ('sequential/dense/kernel'), and its key in the file
    ('layers/dense/vars/0'). A corrupt file raises `ValueError`.
    """

    def __init__(self, path: str):
        with _opened(path) as file:
            datasets, layer_names = _survey(file)
            stored = {
                key: StoredVariable(dataset.shape, _dtype_of(key, dataset))
                for key, dataset in datasets.items()
            }
        names = variable_names(
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
            return {name: _read_one(name, file[self._keys[name]]) for name in names}


def _aliases(
    names: Mapping[str, str], layer_names: Mapping[str, str]
) -> dict[str, str]:
    pairs = []
    for key, name in names.items():
        group, _, number = key.rpartition(f"{_VARS}/")
        layer = layer_path(group.removesuffix("/"), layer_names)
        pairs += [(key, name), (f"{layer}/{number}", name)]
        if "" in layer_names:
            pairs.append((f"{layer_names['']}/{name}", name))
    return unambiguous(pairs)


def _survey(
    file: h5py.File,
) -> tuple[dict[str, h5py.Dataset], dict[str, str]]:
    """Returns the datasets of a file, and the names of its layers."""
    datasets: dict[str, h5py.Dataset] = {}
    layer_names: dict[str, str] = {}

    def collect(key: str, item: h5py.Group | h5py.Dataset) -> None:
        path = key.split("/")
        if isinstance(item, h5py.Dataset):
            if _VARS not in path[-2:-1]:
                raise ValueError(f"{key!r} is not in a group {_VARS!r}")
            datasets[key] = item
        elif path[-1] == _VARS and isinstance(item.attrs.get("name"), str):
            layer_names["/".join(path[:-1])] = item.attrs["name"]

    # This does not follow links, which may lead to other files.
    file.visititems(collect)
    return datasets, layer_names


def _read_one(name: str, dataset: h5py.Dataset) -> np.ndarray:
    if dataset.external or dataset.is_virtual:
        raise ValueError(f"the values of {name!r} are in another file")
    if dataset.id.get_storage_size() < dataset.nbytes:
        raise ValueError(
            f"{name!r} has {dataset.id.get_storage_size()} bytes, where its "
            f"shape {dataset.shape} needs {dataset.nbytes}"
        )
    dtype = _dtype_of(name, dataset)
    return np.asarray(dataset[()], dataset.dtype).view(dtype)


def _dtype_of(name: str, dataset: h5py.Dataset) -> np.dtype:
    """Returns the dtype; Keras stores its name if HDF5 lacks it."""
    dtype = encoding.dtype_of(name, dataset)
    # NumPy returns 2 for dtypes that another package registered.
    are_numbers = dtype.kind in "biufc" or dtype.isbuiltin == 2
    if not are_numbers or dtype.itemsize != dataset.dtype.itemsize:
        raise ValueError(
            f"{name!r} must contain numbers, but has dtype {dataset.dtype}"
        )
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
        EOFError,
        zlib.error,
        zipfile.BadZipFile,
    ) as error:
        raise ValueError(
            f"The file {path!r} is truncated or corrupt, or was not written "
            f"by Keras 3 ({error}). Copy it again if it is a copy; otherwise "
            "save the model again with `save_weights` or `save`."
        ) from error


# The containers of layers in files that lack layer names.
_CONTAINERS = ("layers", "_layer_checkpoint_dependencies")

_KERNEL_BIAS = (("kernel",), ("kernel", "bias"))
_SEPARABLE = (
    ("depthwise_kernel", "pointwise_kernel"),
    ("depthwise_kernel", "pointwise_kernel", "bias"),
)
_RECURRENT = (
    ("kernel", "recurrent_kernel"),
    ("kernel", "recurrent_kernel", "bias"),
)
_GAMMA_BETA = ("gamma", "beta")
_MOVING = ("moving_mean", "moving_variance")

# The possible variables of a class, which their number distinguishes. A single gamma
# or beta is ambiguous, so it has no name here.
_OF_CLASS: dict[str, tuple[tuple[str, ...], ...]] = {
    "dense": _KERNEL_BIAS,
    "einsum_dense": _KERNEL_BIAS,
    "conv1d": _KERNEL_BIAS,
    "conv2d": _KERNEL_BIAS,
    "conv3d": _KERNEL_BIAS,
    "conv1d_transpose": _KERNEL_BIAS,
    "conv2d_transpose": _KERNEL_BIAS,
    "conv3d_transpose": _KERNEL_BIAS,
    "depthwise_conv1d": _KERNEL_BIAS,
    "depthwise_conv2d": _KERNEL_BIAS,
    "separable_conv1d": _SEPARABLE,
    "separable_conv2d": _SEPARABLE,
    "embedding": (("embeddings",),),
    "batch_normalization": (_MOVING, (*_GAMMA_BETA, *_MOVING)),
    "layer_normalization": (_GAMMA_BETA,),
    "group_normalization": (_GAMMA_BETA,),
    "rms_normalization": (("scale",),),
    "p_re_lu": (("alpha",),),
    "lstm_cell": _RECURRENT,
    "gru_cell": _RECURRENT,
    "simple_rnn_cell": _RECURRENT,
}


def variable_names(
    shapes: Mapping[str, Sequence[int]], layer_names: Mapping[str, str]
) -> dict[str, str]:
    """Returns the variables' names, such as 'dense/kernel', by key.

    The name is 'dense/0' if the layer's class is unknown, and the key itself if two
    layers have the same name. In `layer_names` the model has the path ''; files of old
    Keras versions have no layer names.

    >>> shapes = {"layers/dense/vars/0": (3, 2), "layers/dense/vars/1": (2,)}
    >>> variable_names(shapes, {"layers/dense": "query"})
    {'layers/dense/vars/0': 'query/kernel', 'layers/dense/vars/1': 'query/bias'}
    """
    names = {key: path for key in shapes if (path := _path_of(key))}
    keys_of: dict[str, list[str]] = collections.defaultdict(list)
    for key in sorted(shapes.keys() - names, key=_group_and_number):
        keys_of[_group(key)].append(key)
    for group, keys in keys_of.items():
        path = layer_path(group, layer_names)
        classes = [_class_of(group), _class_of(path)]
        class_names = _own_names(classes, [shapes[key] for key in keys])
        for number, key in enumerate(keys):
            name = class_names[number] if class_names else key.rsplit("/", 1)[-1]
            names[key] = f"{path}/{name}" if path else name
    count = collections.Counter(names.values())
    return {key: n if count[n] == 1 else key for key, n in names.items()}


def layer_path(group: str, layer_names: Mapping[str, str]) -> str:
    """Returns the path of a layer in its model: layer names joined by slashes.

    The path of the model itself is its name.

    >>> layer_path("layers/bidirectional/forward_layer", {
    ...     "": "model", "layers/bidirectional": "both",
    ...     "layers/bidirectional/forward_layer": "forward_lstm"})
    'both/forward_lstm'
    """
    if not group:
        return layer_names.get("", "")
    components = group.split("/")
    path = []
    for end, component in enumerate(components, start=1):
        inner = "/".join(components[:end])
        if inner in layer_names:
            path.append(layer_names[inner])
        elif not layer_names and component not in _CONTAINERS:
            path.append(component)
    return "/".join(path)


def _path_of(key: str) -> str | None:
    """Returns the path that an `EstimatorModel` writes, or `None`."""
    _, _, name = key.rpartition("/")
    is_number = bool(_group(key)) or name.isdecimal()
    return None if is_number else urllib.parse.unquote(name)


def _group(key: str) -> str:
    return key.rpartition(f"{_VARS}/")[0].removesuffix("/")


def _group_and_number(key: str) -> tuple[str, int, str]:
    number = key.rsplit("/", 1)[-1]
    return _group(key), int(number) if number.isdecimal() else -1, number


def _class_of(path: str) -> str:
    """Returns the class for a name made of it, such as 'layers/dense_1'."""
    return re.sub(r"_\d+$", "", path.rsplit("/", 1)[-1])


def _own_names(
    classes: Sequence[str], shapes: Sequence[Sequence[int]]
) -> tuple[str, ...] | None:
    listed = [one for one in classes if one in _OF_CLASS]
    if listed:
        candidates = _OF_CLASS[listed[0]]
        return next((c for c in candidates if len(c) == len(shapes)), None)
    return _guess(shapes)


def _guess(shapes: Sequence[Sequence[int]]) -> tuple[str, ...] | None:
    """Returns names by shapes, where the class of a layer is unknown."""
    if len(shapes) == 2 and len(shapes[0]) >= 2:
        return ("kernel", "bias") if len(shapes[1]) < len(shapes[0]) else None
    are_vectors = all(len(shape) == 1 for shape in shapes)
    if are_vectors and len({tuple(shape) for shape in shapes}) == 1:
        return {2: _GAMMA_BETA, 4: (*_GAMMA_BETA, *_MOVING)}.get(len(shapes))
    return None


def opened(path: str) -> KerasReader | None:
    """Returns a reader if the files at a path have this format."""
    return KerasReader(path) if exists(path) else None
