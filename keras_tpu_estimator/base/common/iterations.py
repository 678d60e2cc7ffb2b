"""The length of a device loop, in steps or in seconds."""

import dataclasses
import re
from typing import Literal

from keras_tpu_estimator.base.common.field_checks import check_int

_PATTERN = re.compile(r"([1-9][0-9]*)([smh]?)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_UNITS = ("count", "seconds")


@dataclasses.dataclass(frozen=True)
class IterationsPerLoop:
    """A number of steps, or a duration.

    Args:
        value: Steps, or seconds.
        unit: `'count'` for steps, or `'seconds'`.

    Raises:
        TypeError: The value is not an integer.
        ValueError: The value is not positive, or the unit is unknown.

    Example:

    >>> from keras_tpu_estimator.base.common.iterations import IterationsPerLoop
    >>> IterationsPerLoop(100, "count").value
    100
    """

    value: int
    unit: Literal["count", "seconds"]

    def __post_init__(self) -> None:
        check_int("value", self.value, minimum=1)
        if self.unit not in _UNITS:
            raise ValueError(
                "`unit` must be 'count' or 'seconds'. Received: "
                f"{self.unit!r}. Use IterationsPerLoop.parse to read '5m'."
            )

    @classmethod
    def parse(cls, raw: object) -> "IterationsPerLoop":
        """Parses the argument `iterations_per_loop`.

        Args:
            raw: A positive number of steps, or a duration as a string with the
                suffix `s`, `m` or `h`.

        Raises:
            ValueError: It is neither.

        Example:

        >>> IterationsPerLoop.parse(100)
        IterationsPerLoop(value=100, unit='count')
        >>> IterationsPerLoop.parse("5m")
        IterationsPerLoop(value=300, unit='seconds')
        """
        match = _PATTERN.fullmatch(str(raw))
        if match is None:
            raise ValueError(
                "`iterations_per_loop` must be positive: a number of steps, "
                "or a duration such as '30s', '5m' or '1h'. Received: "
                f"{raw!r}. Pass 1 or more, without leading zeros or fractions."
            )
        number, suffix = match.groups()
        if suffix:
            return cls(int(number) * _SECONDS[suffix], "seconds")
        return cls(int(number), "count")
