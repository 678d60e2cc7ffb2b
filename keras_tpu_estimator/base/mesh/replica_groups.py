"""Groups of replicas that reduce gradients together."""

from collections.abc import Sequence
from typing import Any

Groups = Sequence[Sequence[int]]


def check_groups(groups: Any) -> None:
    """Checks that groups have equal sizes and contain each replica once.

    Args:
        groups: A list of lists of replica numbers.

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
            f"{expected} that holds each replica once, from 0 on. Received: {groups!r}."
        )


def check_partition(groups: Groups | None, num_replicas: int) -> None:
    """Checks that groups contain all replicas.

    Args:
        groups: Checked groups; `None` for one group of all replicas.
        num_replicas: The number of replicas. With one, any groups are valid,
            because nothing is reduced.

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
    """Returns whether these are non-empty lists of integers."""
    if not isinstance(groups, list | tuple) or not groups:
        return False
    return all(
        isinstance(group, list | tuple)
        and group
        and all(isinstance(number, int) for number in group)
        for group in groups
    )
