"""A check that all contestants did the same work."""

from collections.abc import Mapping

import numpy as np


def check_equal(what: str, values: Mapping[str, object], rtol: float) -> None:
    """Checks that all contestants have the same values.

    Args:
        what: The name of the values in the error.
        values: A number or an array of each contestant, by its name.
        rtol: The largest difference, relative to the first contestant's largest value.

    Raises:
        RuntimeError: The values differ more, so the times cannot be compared.
    """
    (first, expected), *others = values.items()
    expected = np.asarray(expected)
    for name, value in others:
        worst = np.max(np.abs(np.asarray(value) - expected))
        if not worst <= rtol * np.max(np.abs(expected)):
            raise RuntimeError(
                f"Expected the same {what} of {first!r} and {name!r}. "
                f"Received {expected} and {value}: they did not do the same "
                "work, so their times cannot be compared."
            )
