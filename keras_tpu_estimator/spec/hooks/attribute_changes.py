"""Changes of an object's attributes, found without keeping their values."""

import collections
import zlib
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

# Of larger values only the size and the last items are compared, so that a save
# does not wait.
_MOST_BYTES = 2**20
_MOST_ITEMS = 1000
_LAST = 8
_SEQUENCES = (list, tuple, collections.deque)
# Files, models, functions and the like, which are no state.
_OPAQUE = "opaque"


def fingerprint(value: Any) -> Hashable:
    """Returns what changes with a value that is data.

    Example:

    >>> fingerprint([1, {"a": 2.0}]) == fingerprint([1, {"a": 2.0}])
    True
    >>> fingerprint([1, {"a": 2.0}]) == fingerprint([1, {"a": 3.0}])
    False
    """
    if value is None or isinstance(
        value, bool | int | float | complex | str | bytes | np.generic
    ):
        return "value", repr(value)
    if isinstance(value, jax.Array):  # Its value never changes.
        return "jax", id(value)
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, _checksum(value)
    if isinstance(value, Mapping):
        return "mapping", len(value), _items(list(value.items()))
    if isinstance(value, _SEQUENCES):
        return "sequence", len(value), _items(list(value))
    if isinstance(value, set | frozenset):
        return "set", len(value), _items(sorted(map(repr, value)))
    return _OPAQUE


def fingerprints(
    subject: Any, but: Collection[str] = ()
) -> dict[str, Hashable]:
    """Returns the fingerprints of an object's attributes by name.

    Args:
        subject: Any object.
        but: The names of attributes to leave out. Defaults to none.
    """
    return {
        name: fingerprint(value)
        for name, value in getattr(subject, "__dict__", {}).items()
        if name not in but
    }


def changed(
    before: Mapping[str, Hashable], now: Mapping[str, Hashable]
) -> list[str]:
    """Returns the names of attributes that hold other data now."""
    return sorted(
        name
        for name, value in now.items()
        if value != _OPAQUE and before.get(name) != value
    )


def _checksum(value: np.ndarray) -> Hashable:
    if value.nbytes > _MOST_BYTES or value.dtype.hasobject:
        return id(value)
    return zlib.crc32(value.tobytes())


def _items(items: list[Any]) -> tuple[Hashable, ...]:
    if len(items) > _MOST_ITEMS:
        items = items[-_LAST:]
    return tuple(map(fingerprint, items))
