"""Variables of a parent process: its places in a cluster, and the number of restarts.

The environment of a child process, such as a reader of data, names the same
place in the cluster as that of its parent. A process that joins a cluster
therefore records its places in an environment variable, which its children inherit.
"""

import os
from collections.abc import Iterable

from keras_tpu_estimator.base.hosts.cluster import Cluster

# The launcher does not pass this on to processes that must join.
PLACES_VARIABLE = "KTE_JOINED"
# Set by the commands `launch` and `supervise` in each process.
RESTARTS_VARIABLE = "KTE_RESTARTS"


def mark(clusters: Iterable[Cluster]) -> None:
    """Records places, joined or in the environment, as taken for child processes."""
    entries = [
        f"{cluster.coordinator_address} {cluster.num_processes} {cluster.process_id}"
        for cluster in clusters
        if not cluster.is_alone
    ]
    os.environ[PLACES_VARIABLE] = ",".join([str(os.getpid()), *entries])


def unmark() -> None:
    """Allows child processes to take the place of this process."""
    os.environ.pop(PLACES_VARIABLE, None)


def is_child() -> bool:
    """Returns whether a parent process has recorded its places, if only its own."""
    process, *_ = os.environ.get(PLACES_VARIABLE, "").split(",")
    return process not in ("", str(os.getpid()))


def parent_clusters() -> list[Cluster]:
    """Returns the places of the parent process, which this one must not take.

    A process that executes another program keeps its number and its place.
    """
    if not is_child():
        return []
    _, *entries = os.environ[PLACES_VARIABLE].split(",")
    return [_parsed(*entry.split(" ")) for entry in entries]


def _parsed(address: str, count: str, number: str) -> Cluster:
    return Cluster(address, int(count), int(number))


def restarts() -> int | None:
    """Returns how often the job of this process has restarted; `None` if unknown."""
    text = os.environ.get(RESTARTS_VARIABLE, "")
    return int(text) if text.isdecimal() else None
