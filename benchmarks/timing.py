"""Timing of several contestants."""

import statistics
import time
from collections.abc import Callable, Mapping


def median_seconds(
    contestants: Mapping[str, Callable[[], object]],
    repetitions: int,
    is_compiled: bool = False,
) -> dict[str, float]:
    """Returns the median time of each contestant in seconds.

    They take turns in a changing order, so that other load slows all of them. The
    first round, which compiles, is not counted.

    Args:
        contestants: The functions to time, by name.
        repetitions: The number of counted rounds.
        is_compiled: Whether all contestants ran before. Defaults to `False`.
    """
    for run in () if is_compiled else contestants.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    order = list(contestants)
    for _ in range(repetitions):
        for name in order:
            times[name].append(seconds(contestants[name]))
        order = order[1:] + order[:1]
    return {name: statistics.median(each) for name, each in times.items()}


def seconds(run: Callable[[], object]) -> float:
    """Returns the time of one run in seconds."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
