"""The text of users' values in messages."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

_MOST_CHARACTERS = 200


def shown(value: Any) -> str:
    """Returns a value and its type in one short line, with arrays by dtype and shape.

    >>> shown({"x": np.zeros(2, "int8"), "rate": 0.5})
    "{'x': int8 of shape (2,), 'rate': 0.5} of type dict"
    """
    if _is_array(value):
        return _shown(value)
    return f"{_shown(value)} of type {type(value).__name__}"


def some(texts: Collection[str], most: int = 3, separator: str = ", ") -> str:
    """Returns the first few texts, and the number of the others.

    >>> some(["a", "b"]), some("abcdef", most=2)
    ('a, b', 'a, b and 4 more')
    """
    first = separator.join(list(texts)[:most])
    more = len(texts) - most
    return f"{first} and {more} more" if more > 0 else first


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray) and not value.ndim:
        return f"{value.dtype} {value.item()!r}"
    if _is_array(value):
        return f"{_dtype(value)} of shape {_shape(value)}"
    return shortened(_items(value) or repr(value))


def shortened(text: str) -> str:
    """Returns a text, without its middle if it is long."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    half = (_MOST_CHARACTERS - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def _items(value: Any) -> str | None:
    """Returns the text of a container, item by item; `None` for others."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{k!r}: {_shown(v)}" for k, v in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        comma = "," if len(value) == 1 else ""
        return f"({', '.join(map(_shown, value))}{comma})"
    return None


def _is_array(value: Any) -> bool:
    if isinstance(value, np.generic):  # A scalar.
        return False
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _dtype(value: Any) -> str:
    return str(getattr(value.dtype, "name", value.dtype))


def _shape(value: Any) -> Any:
    try:
        return tuple(value.shape)
    except (TypeError, ValueError):  # A TensorFlow tensor of unknown rank.
        return value.shape


def plain_name(name: str) -> str:
    """Returns a name without the suffix `":0"` of TensorFlow's tensors."""
    return name.removesuffix(":0")
