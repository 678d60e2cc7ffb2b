"""Frozen records with the methods of named tuples."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Self

from keras_tpu_estimator.base.common.field_checks import did_you_mean


class _Fields:
    """The names of a dataclass's fields, of the class or of an instance."""

    def __get__(self, record: Any, kind: type) -> tuple[str, ...]:
        # `help()` also asks `NamedTupleLike` itself, which has no fields.
        if not dataclasses.is_dataclass(kind):
            return ()
        return tuple(field.name for field in dataclasses.fields(kind))


class NamedTupleLike:
    """Adds the methods of a named tuple to a frozen dataclass.

    It is not a tuple, so it equals no tuple and is one leaf of a pytree.

    Attributes:
        _fields: The names of the fields, in their order.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> config = kte.TPUConfig(iterations_per_loop=100)
    >>> iterations, *rest = config
    >>> config[0] == iterations == config._asdict()["iterations_per_loop"]
    True
    >>> config._replace(num_shards=8).iterations_per_loop
    100
    """

    _fields = _Fields()

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, name) for name in self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __getitem__(self, index: int | slice) -> Any:
        return tuple(self)[index]

    def _asdict(self) -> dict[str, Any]:
        """Returns the values by field name."""
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, **fields: Any) -> Self:
        """Returns a checked copy with other values of some fields.

        Raises:
            ValueError: A field does not exist, or a value is invalid.
            TypeError: A value has the wrong type.
        """
        unknown = [name for name in fields if name not in self._fields]
        if unknown:
            raise ValueError(
                f"The replaced fields of {type(self).__name__} must exist. Received: "
                f"{unknown}.{did_you_mean(unknown[0], self._fields)} Use some of "
                f"{list(self._fields)}."
            )
        # Type checkers cannot know that all subclasses are dataclasses.
        return dataclasses.replace(self, **fields)  # type: ignore[type-var]
