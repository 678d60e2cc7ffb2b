"""Reads the files of Keras: '.weights.h5', and the weights in '.keras'."""

import collections
import contextlib
import re
import urllib.parse
import zipfile
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import h5py
import numpy as np

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
            return {
                name: _read_one(name, file[self._keys[name]]) for name in names
            }


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


_VARS = "vars"

# Where files that lack names of layers keep lists of them.
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

# What the variables of a class may be: how many there are tells which. One of
# gamma and beta alone could be either, so it has no name here.
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
    """Names the datasets of a Keras file.

    Args:
        shapes: Shapes by the key of a dataset, such as 'layers/dense/vars/0'.
        layer_names: Names of layers by their groups' paths, such as
            'layers/dense'; that of the model itself under ''. Empty for a file
            of a Keras that did not store them.

    Returns:
        By key, a name such as 'dense/kernel'; 'dense/0' where the class of the
        layer is unknown; and the key itself where two layers have one name.

    Example:

    >>> shapes = {"layers/dense/vars/0": (3, 2), "layers/dense/vars/1": (2,)}
    >>> variable_names(shapes, {"layers/dense": "query"})
    {'layers/dense/vars/0': 'query/kernel', 'layers/dense/vars/1': 'query/bias'}
    """
    names = {key: path for key in shapes if (path := _path_of(key))}
    keys_of: dict[str, list[str]] = collections.defaultdict(list)
    for key in sorted(shapes.keys() - names, key=_place):
        keys_of[_group(key)].append(key)
    for group, keys in keys_of.items():
        path = layer_path(group, layer_names)
        classes = [_class_of(group), _class_of(path)]
        own = _own_names(classes, [shapes[key] for key in keys])
        for number, key in enumerate(keys):
            name = own[number] if own else key.rsplit("/", 1)[-1]
            names[key] = f"{path}/{name}" if path else name
    count = collections.Counter(names.values())
    return {key: n if count[n] == 1 else key for key, n in names.items()}


def layer_path(group: str, layer_names: Mapping[str, str]) -> str:
    """The path of a layer in its model.

    Args:
        group: The path of its group in the file.
        layer_names: Names of layers by their groups' paths.

    Returns:
        Names of layers within layers, joined by slashes; that of the model
        only for variables of its own.

    Example:

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
    """The path that an `EstimatorModel` writes, where Keras has a number."""
    _, _, name = key.rpartition("/")
    is_number = bool(_group(key)) or name.isdecimal()
    return None if is_number else urllib.parse.unquote(name)


def _group(key: str) -> str:
    return key.rpartition(f"{_VARS}/")[0].removesuffix("/")


def _place(key: str) -> tuple[str, int, str]:
    number = key.rsplit("/", 1)[-1]
    return _group(key), int(number) if number.isdecimal() else -1, number


def _class_of(path: str) -> str:
    """A class by a name that was made of it, such as 'layers/dense_1'."""
    return re.sub(r"_\d+$", "", path.rsplit("/", 1)[-1])


def _own_names(
    classes: Sequence[str], shapes: Sequence[Sequence[int]]
) -> tuple[str, ...] | None:
    known = [one for one in classes if one in _OF_CLASS]
    if known:
        candidates = _OF_CLASS[known[0]]
        return next((c for c in candidates if len(c) == len(shapes)), None)
    return _guess(shapes)


def _guess(shapes: Sequence[Sequence[int]]) -> tuple[str, ...] | None:
    """Names by shapes, for a layer under an attribute and a name of its own."""
    if len(shapes) == 2 and len(shapes[0]) >= 2:
        return ("kernel", "bias") if len(shapes[1]) < len(shapes[0]) else None
    are_vectors = all(len(shape) == 1 for shape in shapes)
    if are_vectors and len({tuple(shape) for shape in shapes}) == 1:
        return {2: _GAMMA_BETA, 4: (*_GAMMA_BETA, *_MOVING)}.get(len(shapes))
    return None
