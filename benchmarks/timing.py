"""Timing several contestants side by side."""

import statistics
import time
from collections.abc import Callable, Mapping


def median_seconds(
    contestants: Mapping[str, Callable[[], object]],
    repetitions: int,
    is_compiled: bool = False,
) -> dict[str, float]:
    """The median time of each contestant, in seconds.

    They take turns, and the order changes from one round to the next, so that
    whatever else the machine does falls on all of them. A first round, in
    which programs are compiled, is not counted.

    Args:
        contestants: The functions to time, by name.
        repetitions: Rounds to count.
        is_compiled: Whether all ran before. Defaults to `False`.
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
    """The time of one run, in seconds."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
