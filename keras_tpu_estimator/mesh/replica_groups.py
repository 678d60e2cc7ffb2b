"""Groups of replicas that reduce gradients together."""

from collections.abc import Sequence
from typing import Any

from keras_tpu_estimator.mesh.replica_context import ReplicaContext

Groups = Sequence[Sequence[int]]


def check_groups(groups: Any) -> None:
    """Checks that groups have one size and hold each replica once.

    Args:
        groups: List of lists of replica numbers.

    Raises:
        ValueError: They do not.

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


def check_one_group(groups: Groups | None, context: ReplicaContext) -> None:
    """Checks that groups are one group of all replicas.

    Args:
        groups: Checked groups; `None` for the default.
        context: What is known of the replicas. On one core nothing is reduced,
            and any groups will do.

    Raises:
        ValueError: They are of other replicas, or several.

    Example:

    >>> check_one_group([[0, 1]], ReplicaContext(2, ("batch",)))
    """
    if groups is None or not context.axes:
        return
    count = sum(len(group) for group in groups)
    if count != context.num_replicas:
        raise ValueError(
            "`group_assignment` should partition the "
            f"{context.num_replicas} replicas. Received {count} of them: "
            f"{groups!r}. Leave it out for one group of all replicas."
        )
    if len(groups) > 1:
        raise ValueError(
            "`group_assignment` should be one group of all replicas. Received "
            f"{len(groups)} groups: {groups!r}. An estimator keeps variables "
            "equal on all cores, and gradients that are reduced in groups "
            "would make those of one group differ from those of another. "
            "Leave it out; to reduce other tensors in groups, use "
            "jax.lax.psum with `axis_index_groups`."
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
