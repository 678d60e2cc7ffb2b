"""Places in a cluster that a parent process has already taken.

The environment of a child process, such as a reader of data, names the same
place in the cluster as that of its parent. A process that joins a cluster
therefore records its places in an environment variable, which its children inherit.
"""

import os
from collections.abc import Iterable

from keras_tpu_estimator.base.hosts.cluster import Cluster

# The launcher does not pass this on to processes that must join.
VARIABLE = "KTE_JOINED"


def mark(places: Iterable[Cluster]) -> None:
    """Records places, joined or in the environment, as taken for child processes."""
    taken = [
        f"{place.coordinator_address} {place.num_processes} {place.process_id}"
        for place in places
        if not place.is_alone
    ]
    os.environ[VARIABLE] = ",".join([str(os.getpid()), *taken])


def unmark() -> None:
    """Allows child processes to take the place of this process."""
    os.environ.pop(VARIABLE, None)


def taken() -> list[Cluster]:
    """Returns the places of the parent process, which this one must not take.

    A process that executes another program keeps its number and its place.
    """
    process, *places = os.environ.get(VARIABLE, "").split(",")
    if process in ("", str(os.getpid())):
        return []
    return [_place(*each.split(" ")) for each in places]


def _place(address: str, count: str, number: str) -> Cluster:
    return Cluster(address, int(count), int(number))
