"""Names for the variables in a Keras file, which has only their numbers.

Keras stores the variables of a layer as 'vars/0', 'vars/1', ..., in a group
whose path is made of attributes and of the classes of layers, and whose
attribute `name` is the layer's name. So 'layers/dense_3/vars/0' of a layer
that is called 'query' is named 'query/kernel' here: layers by their names,
containers left out, and variables as the layers of Keras call them. An
`EstimatorModel` stores all of its own under their paths.
"""

import collections
import re
import urllib.parse
from collections.abc import Mapping
from collections.abc import Sequence

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
