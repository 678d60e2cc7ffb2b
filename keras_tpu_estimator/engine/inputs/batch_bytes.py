"""Batches as bytes that can be read without running what is in them."""

import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.engine.inputs.unbatched import Unbatched
from keras_tpu_estimator.ground.base.types import Nest

_LENGTH_BYTES = 8
_LEAF = "leaf"


def to_bytes(nest: Nest) -> bytes:
    """A nest of arrays, with what is needed to make it again.

    Args:
        nest: The nest; `None` is one without arrays.

    Example:

    >>> import numpy as np
    >>> from keras_tpu_estimator.engine.inputs import batch_bytes
    >>> data = batch_bytes.to_bytes({"x": np.arange(3), "y": None})
    >>> batch_bytes.from_bytes(data)
    {'x': array([0, 1, 2]), 'y': None}
    """
    leaves = [_native(leaf) for leaf in jax.tree.leaves(nest)]
    head = json.dumps(
        {
            "leaves": [[leaf.dtype.name, leaf.shape] for leaf in leaves],
            "nest": _described(nest),
        }
    ).encode()
    length = len(head).to_bytes(_LENGTH_BYTES)
    return b"".join([length, head, *(leaf.tobytes() for leaf in leaves)])


def from_bytes(data: bytes, structure: Any = None) -> Nest:
    """The nest that was made bytes.

    Args:
        data: The bytes.
        structure: Its structure, if that has nodes of which only the program
            knows, such as a named tuple. Defaults to `None`.

    Raises:
        ValueError: It has such nodes, and they are not known.
    """
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES])
    head = json.loads(data[_LENGTH_BYTES:start])
    leaves = []
    for name, shape in head["leaves"]:
        dtype, count = jnp.dtype(name), math.prod(shape)
        leaf = np.frombuffer(data, dtype, count, start).reshape(shape)
        leaves.append(leaf)
        start += leaf.nbytes
    if head["nest"] is not None:
        structure = jax.tree.structure(_made(head["nest"]))
    if structure is None:
        raise ValueError(
            "A host without any batch should know how those of others are "
            "nested. Received named tuples, or nodes that the program has "
            "registered. Have input_fn make dicts, tuples or lists."
        )
    return jax.tree.unflatten(structure, leaves)


def _native(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype.byteorder in "<>" and not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array


def _described(nest: Nest) -> Any:
    """A nest in what JSON can write; `None` if it has nodes of other types."""
    try:
        return _description(nest)
    except TypeError:
        return None


def _description(node: Any) -> Any:
    kind = type(node)
    if node is None:
        return []
    if kind is dict and all(type(key) is str for key in node):
        return ["dict", {k: _description(v) for k, v in node.items()}]
    if kind in (list, tuple):
        return [kind.__name__, *map(_description, node)]
    if kind is Unbatched:
        return ["shared", _description(node.value)]
    if jax.tree_util.all_leaves([node]):
        return _LEAF
    raise TypeError(f"JSON cannot write {kind}.")


def _made(description: Any) -> Any:
    """A nest of that description."""
    if description in ([], _LEAF):
        return None if description == [] else _LEAF
    kind, *parts = description
    if kind == "dict":
        return {key: _made(part) for key, part in parts[0].items()}
    made = [_made(part) for part in parts]
    if kind == "shared":
        return Unbatched(*made)
    return tuple(made) if kind == "tuple" else made
