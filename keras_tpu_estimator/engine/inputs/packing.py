"""Nested states as JSON and bytes, in which nothing can be code."""

import dataclasses
import json
import sys
from typing import Any

import numpy as np

from keras_tpu_estimator.engine.inputs.other_libraries import is_of_torch
from keras_tpu_estimator.ground.base.shown import shown

_NUMBERS = "biufc"


@dataclasses.dataclass(frozen=True)
class Packed:
    """A nested value.

    Attributes:
        text: JSON, in which bytes and arrays are numbers of blobs.
        blobs: Their contents.
    """

    text: str
    blobs: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """How many bytes it takes, about."""
        return len(self.text) + sum(map(len, self.blobs))


def pack(value: Any) -> Packed:
    """Packs a value.

    Args:
        value: Numbers, strings, bytes, `None`, arrays or tensors, and dicts,
            lists and tuples of these.

    Raises:
        TypeError: Something else is in it.

    Example:

    >>> packed = pack({"next": 3, "rng": (np.ones(2), b"abc")})
    >>> len(packed.blobs), unpack(packed)
    (2, {'next': 3, 'rng': (array([1., 1.]), b'abc')})
    """
    blobs: list[bytes] = []

    def encode(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
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
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "is_torch": is_of_torch(value),
        }

    text = json.dumps(encode(value))
    return Packed(text, tuple(blobs))


def unpack(packed: Packed) -> Any:
    """The value that was packed; tensors but PyTorch's are NumPy arrays."""

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
        return array.copy()

    return decode(json.loads(packed.text))


def _as_numbers(value: Any) -> np.ndarray:
    is_array = hasattr(value, "__array__")
    array = np.asarray(value) if is_array else np.empty(0, object)
    if array.dtype.kind not in _NUMBERS:
        raise TypeError(
            "The state of an input should be made of numbers, strings, bytes "
            "and arrays, in dicts, lists and tuples. Received: "
            f"{shown(value)}. Leave it out of the "
            "state."
        )
    return array
