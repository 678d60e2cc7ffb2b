"""The environment of a process that a command of this package starts."""

from collections.abc import Mapping

from keras_tpu_estimator.base.hosts import parent_process
from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.detection import (
    ADDRESS_VARIABLE,
    COUNT_VARIABLE,
    ID_VARIABLE,
)


def environment_for(
    cluster: Cluster, inherited: Mapping[str, str], restarts: int
) -> dict[str, str]:
    """Returns the environment of a process with a place in a cluster.

    Args:
        cluster: The place. `local_id` is the number of its only GPU, if there are any.
        inherited: The environment of this process.
        restarts: The number of restarts of the job.
    """
    environment = {
        # Lines appear as soon as they are written.
        "PYTHONUNBUFFERED": "1",
        # Each process has its own place in the cluster.
        **{k: v for k, v in inherited.items() if k != parent_process.PLACES_VARIABLE},
        COUNT_VARIABLE: str(cluster.num_processes),
        ID_VARIABLE: str(cluster.process_id),
        parent_process.RESTARTS_VARIABLE: str(restarts),
    }
    if cluster.coordinator_address is not None:
        environment[ADDRESS_VARIABLE] = cluster.coordinator_address
    if cluster.local_id is not None:
        environment.setdefault("JAX_LOCAL_DEVICE_IDS", str(cluster.local_id))
    return environment
