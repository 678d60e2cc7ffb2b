"""Whether a process was started by one that has joined others.

Its environment says then that it is a part of the same cluster, though it only
helps one that is: it reads data, say, and imports the program for that. So who
joins leaves a mark in its own environment, which all that it starts inherit.
"""

import os
from collections.abc import Iterable

from keras_tpu_estimator.ground.hosts.cluster import Cluster

# Not set by whoever starts processes that are to join.
VARIABLE = "KTE_JOINED"


def mark(places: Iterable[Cluster]) -> None:
    """Tells processes that this one starts which places are taken.

    Args:
        places: What was joined, and what else the environment may say.

    Example:

    >>> from keras_tpu_estimator.ground.hosts import lineage
    >>> from keras_tpu_estimator.ground.hosts.cluster import Cluster
    >>> lineage.mark([Cluster("10.0.0.1:8476", 4, 1)])
    >>> lineage.taken()  # By others.
    []
    >>> lineage.unmark()
    """
    taken = [
        f"{place.coordinator_address} {place.num_processes} {place.process_id}"
        for place in places
        if not place.is_alone
    ]
    os.environ[VARIABLE] = ",".join([str(os.getpid()), *taken])


def unmark() -> None:
    """Lets processes that this one starts take its place."""
    os.environ.pop(VARIABLE, None)


def taken() -> list[Cluster]:
    """The places of the process that has started this one.

    A process that becomes another program keeps its number, and its place.

    Returns:
        Clusters, none of which this process is to join.
    """
    process, *places = os.environ.get(VARIABLE, "").split(",")
    if process in ("", str(os.getpid())):
        return []
    return [_place(*each.split(" ")) for each in places]


def _place(address: str, count: str, number: str) -> Cluster:
    return Cluster(address, int(count), int(number))
