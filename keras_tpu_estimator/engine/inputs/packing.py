"""Nested values as JSON and bytes, which never contain code.

States of inputs and callbacks are packed into ZIP archives beside checkpoints. Each
part of an archive has a checksum, and its comment is the token of the save.
Processes send batches to each other as bytes.
"""

import dataclasses
import json
import math
import sys
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.engine.inputs.other_libraries import is_of_torch
from keras_tpu_estimator.engine.inputs.unbatched import Unbatched
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.atomic.checksum import stamp

_NUMBERS = "biufc"


@dataclasses.dataclass(frozen=True)
class Packed:
    """A packed nested value: JSON, in which bytes and arrays are indices of blobs."""

    text: str
    blobs: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """The approximate number of bytes."""
        return len(self.text) + sum(map(len, self.blobs))


def pack(value: Any) -> Packed:
    """Packs nested numbers, strings, bytes, `None`, arrays and tensors."""
    blobs: list[bytes] = []

    def encode(value: Any) -> Any:
        # NumPy's float64 is also a Python float, and its strings are strings.
        is_scalar = isinstance(value, np.generic) and not isinstance(value, str | bytes)
        plain = bool | int | float | str
        if value is None or (isinstance(value, plain) and not is_scalar):
            return value
        if isinstance(value, bytes):
            blobs.append(value)
            return {"bytes": len(blobs) - 1}
        if isinstance(value, dict):
            pairs = value.items()
            return {"dict": [[encode(k), encode(v)] for k, v in pairs]}
        if isinstance(value, tuple | list):
            items = [encode(item) for item in value]
            return {"tuple": items} if isinstance(value, tuple) else items
        array = _as_numbers(value)
        blobs.append(array.tobytes())
        return {
            "array": len(blobs) - 1,
            "dtype": _name_of(array.dtype),
            "shape": list(array.shape),
            "is_scalar": is_scalar,
            "is_torch": is_of_torch(value),
        }

    text = json.dumps(encode(value))
    return Packed(text, tuple(blobs))


def unpack(packed: Packed) -> Any:
    """Returns the packed value, with NumPy arrays for all tensors except PyTorch's."""

    def decode(value: Any) -> Any:
        if isinstance(value, list):
            return [decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "bytes" in value:
            return packed.blobs[value["bytes"]]
        if "dict" in value:
            return {decode(k): decode(v) for k, v in value["dict"]}
        if "tuple" in value:
            return tuple(map(decode, value["tuple"]))
        blob = packed.blobs[value["array"]]
        array = np.frombuffer(blob, value["dtype"]).reshape(value["shape"])
        if value["is_torch"] and "torch" in sys.modules:
            return sys.modules["torch"].from_numpy(array.copy())
        return array[()] if value.get("is_scalar") else array.copy()

    return decode(json.loads(packed.text))


def _as_numbers(value: Any) -> np.ndarray:
    is_array = hasattr(value, "__array__")
    array = np.asarray(value) if is_array else np.empty(0, object)
    if array.dtype.kind not in _NUMBERS and not _is_of_ml_dtypes(array.dtype):
        raise TypeError(
            "A state must be made of numbers, strings, bytes and arrays of "
            "numbers, in dicts, lists and tuples. Received: "
            f"{shown(value)}. Remove it from the state."
        )
    return array


def _is_of_ml_dtypes(dtype: np.dtype) -> bool:
    """Returns whether NumPy lacks a dtype, such as bfloat16."""
    return getattr(ml_dtypes, dtype.name, None) is dtype.type


def _name_of(dtype: np.dtype) -> str:
    """Returns the name with which NumPy finds a dtype."""
    # NumPy describes these dtypes only by their number of bytes.
    return dtype.name if _is_of_ml_dtypes(dtype) else dtype.str


_LENGTH_BYTES = 8
_LEAF = "leaf"


def to_bytes(tree: PyTree) -> bytes:
    """Returns a pytree of arrays as bytes. `None` is a pytree without arrays."""
    leaves = [_native(leaf) for leaf in jax.tree.leaves(tree)]
    head = json.dumps(
        {
            "leaves": [[leaf.dtype.name, leaf.shape] for leaf in leaves],
            "nest": _described(tree),
        }
    ).encode()
    length = len(head).to_bytes(_LENGTH_BYTES)
    return b"".join([length, head, *(leaf.tobytes() for leaf in leaves)])


def from_bytes(data: bytes, structure: Any = None) -> PyTree:
    """Returns the pytree in bytes; types that JSON lacks need its `structure`."""
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES])
    head = json.loads(data[_LENGTH_BYTES:start])
    leaves = []
    for name, shape in head["leaves"]:
        dtype, count = jnp.dtype(name), math.prod(shape)
        leaf = np.frombuffer(data, dtype, count, start).reshape(shape)
        leaves.append(leaf)
        start += leaf.nbytes
    if head["nest"] is not None:
        structure = jax.tree.structure(_structured(head["nest"]))
    if structure is None:
        raise ValueError(
            "A host without batches must know the structure of other hosts' "
            "batches. Received named tuples or registered pytree nodes. Return "
            "dicts, tuples or lists from input_fn."
        )
    return jax.tree.unflatten(structure, leaves)


def _native(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype.byteorder in "<>" and not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array


def _described(tree: PyTree) -> Any:
    """Returns a pytree's structure for JSON, or `None` if JSON lacks a type."""
    try:
        return _description(tree)
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
    raise TypeError(f"JSON does not support {kind}.")


def _structured(description: Any) -> Any:
    """Returns a pytree with the described structure."""
    if description in ([], _LEAF):
        return None if description == [] else _LEAF
    kind, *parts = description
    if kind == "dict":
        return {key: _structured(part) for key, part in parts[0].items()}
    values = [_structured(part) for part in parts]
    if kind == "shared":
        return Unbatched(*values)
    return tuple(values) if kind == "tuple" else values


def write_archive(
    path: str,
    token: str,
    name: str,
    record: Mapping[str, Any],
    blobs: Iterable[bytes],
) -> None:
    """Writes a named record for JSON, blobs and a save's token atomically."""
    blobs = tuple(blobs)
    with commit.replacing(path) as partial:
        with zipfile.ZipFile(partial, "w") as file:
            file.writestr(name, json.dumps({**record, "blobs": len(blobs)}))
            for number, blob in enumerate(blobs):
                file.writestr(str(number), blob)
            file.comment = stamp(token)


def read_archive(path: str, name: str) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """Reads the named record and the blobs, in a block of `parsing`."""
    with (
        paths.opened(path) as stream,
        zipfile.ZipFile(stream) as file,
    ):
        record = json.loads(file.read(name))
        count = record.get("blobs", 0)
        return record, tuple(file.read(str(n)) for n in range(count))
