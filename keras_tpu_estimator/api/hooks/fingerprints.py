"""Fingerprints of attributes, by which a resumed call notices what it has lost.

They serve only a warning. Therefore nothing that happens to a value ends training: an
attribute that cannot be read, such as one that another thread changes, is unknown. The
cost of a save has a bound, and attributes beyond it are unknown.
"""

import collections
import dataclasses
import itertools
import weakref
import zlib
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

# Only the size and some items of larger values are compared.
_MOST_BYTES = 2**20
_MOST_ITEMS = 1000
_SOME = 8
_DEEPEST = 4
# The number of values of all attributes of an object.
_MOST_VALUES = 20_000
_CONTAINERS = (dict, list, tuple, collections.deque, set, frozenset)
# Files, models, functions and the like are not state.
_OPAQUE = "opaque"
_UNKNOWN = "unknown"


def fingerprints(subject: Any, but: Collection[str] = ()) -> dict[str, Hashable]:
    """Returns the fingerprints of an object's attributes by name."""
    budget = _Budget()
    # Another thread may set attributes. A copy is made at once.
    attributes = dict(getattr(subject, "__dict__", {}))
    return {
        name: budget.fingerprint(value)
        for name, value in attributes.items()
        if name not in but
    }


def changed_names(
    before: Mapping[str, Hashable], now: Mapping[str, Hashable]
) -> list[str]:
    """Returns the names of attributes whose data have changed."""
    return sorted(
        name
        for name, value in now.items()
        if value != _OPAQUE
        and _UNKNOWN not in (value, before.get(name))
        and before.get(name) != value
    )


class _Identity:
    """An object, which equals only itself, and nothing after it is deleted.

    A later object may have its `id`: a counter that is replaced in each step has the
    same one in every second step.
    """

    def __init__(self, value: Any):
        self._reference = weakref.ref(value)
        self._hash = id(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        value = self._reference()
        return (
            value is not None
            and isinstance(other, _Identity)
            and value is other._reference()
        )


class _BeyondBudgetError(Exception):
    """The values of an object are too many."""


@dataclasses.dataclass
class _Budget:
    """The number of values that may still be read."""

    values: int = _MOST_VALUES

    def fingerprint(self, value: Any) -> Hashable:
        """Returns what differs in this process if the data of an attribute differ."""
        try:
            return self._of_value(value, depth=0)
        except Exception:  # Of the user's class, of another thread, or of the budget.
            return _UNKNOWN

    def _of_value(self, value: Any, depth: int) -> Hashable:
        self.values -= 1
        if self.values < 0:
            raise _BeyondBudgetError
        if value is None or isinstance(value, str | bytes):
            return "value", value.__class__, hash(value)
        if isinstance(value, int):  # A long one has no `repr`.
            return "value", value.__class__, value
        if isinstance(value, float | complex | np.generic):
            return "value", repr(value)  # NaN equals itself here.
        if isinstance(value, jax.Array):  # This value never changes.
            return _Identity(value)
        if isinstance(value, np.ndarray):
            return "array", str(value.dtype), value.shape, _checksum(value)
        if not isinstance(value, _CONTAINERS) or depth > _DEEPEST:
            return _OPAQUE
        prints = tuple(self._of_value(item, depth + 1) for item in _items(value))
        return type(value).__name__, len(value), prints


def _checksum(value: np.ndarray) -> Hashable:
    if value.nbytes > _MOST_BYTES or value.dtype.hasobject:
        return _Identity(value)
    return zlib.crc32(value.tobytes())


def _items(value: Any) -> Iterable[Any]:
    """Returns the items of a container to compare."""
    is_large = len(value) > _MOST_ITEMS
    if isinstance(value, dict):
        return itertools.islice(value.items(), _SOME if is_large else None)
    if isinstance(value, list | tuple):
        return value[-_SOME:] if is_large else value
    if isinstance(value, collections.deque):
        return itertools.islice(reversed(value), _SOME if is_large else None)
    return () if is_large else sorted(map(repr, value))
