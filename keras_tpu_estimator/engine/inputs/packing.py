"""Nested states as JSON and bytes, in which nothing can be code."""

import dataclasses
import json
import sys
from typing import Any

import ml_dtypes
import numpy as np

from keras_tpu_estimator.engine.inputs.other_libraries import is_of_torch
from keras_tpu_estimator.ground.base.shown import shown

_NUMBERS = "biufc"


@dataclasses.dataclass(frozen=True)
class Packed:
    """A nested value.

    Attributes:
        text: JSON, in which bytes and arrays are numbers of blobs.
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
        value: Numbers, strings, bytes, `None`, arrays of numbers or tensors,
            and dicts, lists and tuples of these.

    Raises:
        TypeError: Something else is in it.

    Example:

    >>> packed = pack({"next": 3, "rng": (np.ones(2), b"abc")})
    >>> len(packed.blobs), unpack(packed)
    (2, {'next': 3, 'rng': (array([1., 1.]), b'abc')})
    """
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
        return array[()] if value.get("is_scalar") else array.copy()

    return decode(json.loads(packed.text))


def _as_numbers(value: Any) -> np.ndarray:
    is_array = hasattr(value, "__array__")
    array = np.asarray(value) if is_array else np.empty(0, object)
    if array.dtype.kind not in _NUMBERS and not _is_of_ml_dtypes(array.dtype):
        raise TypeError(
            "A state must be made of numbers, strings, bytes and arrays of "
            "numbers, in dicts, lists and tuples. Received: "
            f"{shown(value)}. Leave it out of the state."
        )
    return array


def _is_of_ml_dtypes(dtype: np.dtype) -> bool:
    """Whether a dtype is one that NumPy itself lacks, such as bfloat16."""
    return getattr(ml_dtypes, dtype.name, None) is dtype.type


def _name_of(dtype: np.dtype) -> str:
    """Returns the name by which NumPy finds a dtype."""
    # NumPy describes the bytes of these dtypes only by their number.
    return dtype.name if _is_of_ml_dtypes(dtype) else dtype.str
