"""Detection of changed attributes, without copies of their values."""

import collections
import itertools
import zlib
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

# Only the size and some items of larger values are compared, so that a save is
# fast.
_MOST_BYTES = 2**20
_MOST_ITEMS = 1000
_SOME = 8
_DEEPEST = 4
_CONTAINERS = (dict, list, tuple, collections.deque, set, frozenset)
# Files, models, functions and the like are not state.
_OPAQUE = "opaque"


def fingerprint(value: Any, depth: int = 0) -> Hashable:
    """Returns a value that differs if the data of `value` differ, in this
    process.
    """
    if value is None or isinstance(value, str | bytes):
        return "value", value.__class__, hash(value)
    if isinstance(value, bool | int | float | complex | np.generic):
        return "value", repr(value)  # NaN equals itself here.
    if isinstance(value, jax.Array):  # This value never changes.
        return "jax", id(value)
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, _checksum(value)
    items = _items(value)
    if items is None or depth > _DEEPEST:
        return _OPAQUE
    prints = tuple(fingerprint(item, depth + 1) for item in items)
    return type(value).__name__, len(value), prints


def fingerprints(subject: Any, but: Collection[str] = ()) -> dict[str, Hashable]:
    """Returns the fingerprints of an object's attributes by name."""
    return {
        name: fingerprint(value)
        for name, value in getattr(subject, "__dict__", {}).items()
        if name not in but
    }


def changed(before: Mapping[str, Hashable], now: Mapping[str, Hashable]) -> list[str]:
    """Returns the names of attributes whose data have changed."""
    return sorted(
        name
        for name, value in now.items()
        if value != _OPAQUE and before.get(name) != value
    )


def _checksum(value: np.ndarray) -> Hashable:
    if value.nbytes > _MOST_BYTES or value.dtype.hasobject:
        return id(value)
    return zlib.crc32(value.tobytes())


def _items(value: Any) -> Iterable[Any] | None:
    """Returns the items of a container to compare; `None` for other values."""
    # TensorFlow's graph tensors also have a `__len__`, which raises.
    if not isinstance(value, _CONTAINERS):
        return None
    is_large = len(value) > _MOST_ITEMS
    if isinstance(value, dict):
        return itertools.islice(value.items(), _SOME if is_large else None)
    if isinstance(value, list | tuple):
        return value[-_SOME:] if is_large else value
    if isinstance(value, collections.deque):
        return itertools.islice(reversed(value), _SOME if is_large else None)
    return () if is_large else sorted(map(repr, value))
