"""Making sure that contestants did the same work."""

from collections.abc import Mapping

import numpy as np


def check_equal(what: str, values: Mapping[str, object], rtol: float) -> None:
    """Checks that all contestants came to the same values.

    Args:
        what: The name of the values in the error.
        values: A number or an array of each contestant, by its name.
        rtol: How much they may differ, relative to the first one's largest.

    Raises:
        RuntimeError: They differ more: the times mean nothing.
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
