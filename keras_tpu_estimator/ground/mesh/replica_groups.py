"""Groups of replicas that reduce gradients together."""

from collections.abc import Sequence
from typing import Any

Groups = Sequence[Sequence[int]]


def check_groups(groups: Any) -> None:
    """Checks that groups have one size and hold each replica once.

    Args:
        groups: List of lists of replica numbers.

    Example:

    >>> check_groups([[0, 1, 2, 3]])
    """
    expected = "`group_assignment` should be a list of lists of replica numbers"
    if not _are_lists(groups):
        raise ValueError(
            f"{expected}. Received: {groups!r}. Leave it out for one group of "
            "all replicas."
        )
    if len({len(group) for group in groups}) > 1:
        raise ValueError(
            f"{expected}, all of one size. Received: {groups!r}, of sizes "
            f"{[len(group) for group in groups]}."
        )
    numbers = sorted(number for group in groups for number in group)
    if numbers != list(range(len(numbers))):
        raise ValueError(
            f"{expected} that holds each replica once, from 0 on. Received: "
            f"{groups!r}."
        )


def check_partition(groups: Groups | None, num_replicas: int) -> None:
    """Checks that groups hold all replicas.

    Args:
        groups: Checked groups; `None` for one of all replicas.
        num_replicas: How many replicas there are. On one core nothing is
            reduced, and any groups will do.

    Example:

    >>> check_partition([[0, 1], [2, 3]], num_replicas=4)
    """
    if groups is None or num_replicas == 1:
        return
    count = sum(len(group) for group in groups)
    if count != num_replicas:
        raise ValueError(
            "`group_assignment` should partition the "
            f"{num_replicas} replicas. Received {count} of them: "
            f"{groups!r}. Leave it out for one group of all replicas."
        )


def _are_lists(groups: Any) -> bool:
    """Whether these are lists of integers, none of them empty."""
    if not isinstance(groups, list | tuple) or not groups:
        return False
    return all(
        isinstance(group, list | tuple)
        and group
        and all(isinstance(number, int) for number in group)
        for group in groups
    )
