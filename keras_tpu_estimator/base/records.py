"""Frozen records that are copied with changes, as named tuples are."""

import dataclasses
from typing import Any
from typing import Self


class Replaceable:
    """Gives a frozen dataclass the `_replace` of a named tuple.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> config = kte.TPUConfig(iterations_per_loop=100)
    >>> config._replace(num_shards=8).iterations_per_loop
    100
    """

    def _replace(self, **fields: Any) -> Self:
        """A copy with other values of some fields, which is checked anew.

        Raises:
            ValueError: There is no such field, or a value is wrong.
            TypeError: A value is of a wrong type.
        """
        allowed = [field.name for field in dataclasses.fields(self)]
        unknown = [name for name in fields if name not in allowed]
        if unknown:
            raise ValueError(
                f"{type(self).__name__} has no fields {unknown} to replace. "
                f"Expected some of {allowed}."
            )
        return dataclasses.replace(self, **fields)
