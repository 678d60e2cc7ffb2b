"""Detection of this process's cluster from arguments and the environment."""

import os
import re
from collections.abc import Callable

from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.task import Task
from keras_tpu_estimator.base.upstream import jax_clusters

# Set by `python -m keras_tpu_estimator launch` in each process.
ADDRESS_VARIABLE = "KTE_COORDINATOR_ADDRESS"
COUNT_VARIABLE = "KTE_NUM_PROCESSES"
ID_VARIABLE = "KTE_PROCESS_ID"

_ARGUMENTS = ("coordinator_address", "num_processes", "process_id")
_VARIABLES = (ADDRESS_VARIABLE, COUNT_VARIABLE, ID_VARIABLE)


def find_cluster(timeout_secs: int) -> Cluster:
    """Returns the cluster of this process, from its environment.

    The first of these that defines a cluster is used: the variables of `python -m
    keras_tpu_estimator launch`, TF_CONFIG, and the launchers that JAX knows (Open MPI,
    SLURM, GKE, Cloud TPU and Kubernetes). An evaluator or a parameter server of
    TF_CONFIG is a single process. Incomplete or contradictory definitions raise errors.

    Args:
        timeout_secs: Seconds to wait for the address of the coordinator.
    """
    cluster = (
        _from_variables()
        or from_tf_config()
        or _from_jax(jax_clusters.launcher, timeout_secs)
    )
    if cluster is None:
        _check_no_other_launcher()
    return cluster or Cluster()


def read_cluster() -> Cluster:
    """Returns the same from environment variables only, without any request."""
    return (
        _from_variables()
        or from_tf_config()
        or _from_jax(jax_clusters.launcher_of_environment, timeout_secs=1)
        or Cluster()
    )


def from_arguments(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
) -> Cluster | None:
    """Returns the cluster that arguments define; `None` if all are `None`.

    All three are required, unless `num_processes` is 1.
    """
    return _complete(_ARGUMENTS, (coordinator_address, num_processes, process_id))


def from_tf_config() -> Cluster | None:
    """Returns the cluster of TF_CONFIG, if any, whose chief is process 0."""
    task = Task.from_environment()
    if task.task_type == "evaluator":
        return Cluster()
    if not task.cluster_spec:
        return None
    if task.task_type == "ps" or task.num_worker_replicas == 1:
        return Cluster()
    number = task.global_id_in_cluster or 0
    return _naming_source(
        "TF_CONFIG, whose chief is the coordinator",
        lambda: Cluster(task.chief_address, task.num_worker_replicas, number),
    )


def check_tf_config(cluster: Cluster) -> None:
    """Checks that TF_CONFIG, if it defines a cluster, does not contradict this one."""
    other = from_tf_config()
    if other is not None and _count_and_number(other) != _count_and_number(cluster):
        raise ValueError(
            "TF_CONFIG must define the same cluster as the program or its "
            f"launcher. Received: by TF_CONFIG, this is {other}; otherwise, "
            f"it is {cluster}. Unset TF_CONFIG, or define the cluster only "
            "there."
        )


def _count_and_number(cluster: Cluster) -> tuple[int, int]:
    return cluster.num_processes, cluster.process_id


def _complete(
    names: tuple[str, str, str],
    values: tuple[str | None, int | None, int | None],
) -> Cluster | None:
    """Returns a cluster of three values, which need each other."""
    address, count, number = values
    if values == (None, None, None):
        return None
    if count == 1:
        return Cluster(address, count, 0 if number is None else number)
    if address is None or count is None or number is None:
        shown = ", ".join(
            f"{name}={value!r}" for name, value in zip(names, values, strict=True)
        )
        missing = [
            name for name, value in zip(names, values, strict=True) if value is None
        ]
        raise ValueError(
            f"A cluster must be defined by {names[0]}, {names[1]} and "
            f"{names[2]}. Received: {shown}. Add {' and '.join(missing)}, or "
            "omit all three to detect the cluster."
        )
    return Cluster(address, count, number)


def _from_variables() -> Cluster | None:
    address = os.environ.get(ADDRESS_VARIABLE)
    count = _number(COUNT_VARIABLE)
    number = _number(ID_VARIABLE)
    return _naming_source(
        f"the environment variables {', '.join(_VARIABLES)}",
        lambda: _complete(_VARIABLES, (address, count, number)),
    )


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not re.fullmatch("[0-9]+", text):
        raise ValueError(
            f"The environment variable {name} must be an integer. "
            f"Received: {text!r}. Correct it, or unset it."
        )
    return int(text)


def _from_jax(
    launcher: Callable[[], jax_clusters.Launcher | None], timeout_secs: int
) -> Cluster | None:
    """Returns the cluster of a launcher that JAX knows."""
    try:
        launched = _ask(launcher(), timeout_secs)
    # Launchers query metadata servers, and packages that may be missing.
    except Exception as error:
        raise RuntimeError(
            "JAX could not detect the cluster of this process. Received: "
            f"{type(error).__name__}: {error}. Pass coordinator_address, "
            "num_processes and process_id to keras_tpu_estimator.initialize, "
            "or num_processes=1 for a single process."
        ) from error
    if launched is None:
        return None
    name, address, count, number = launched
    return _naming_source(
        f"what JAX found ({name})", lambda: Cluster(address, count, number)
    )


def _ask(
    launcher: jax_clusters.Launcher | None, timeout_secs: int
) -> tuple[str, str | None, int, int] | None:
    """Returns the name of a launcher, and the fields of its cluster."""
    if launcher is None:
        return None
    count = launcher.get_process_count()
    if count == 1:
        return launcher.__name__, None, count, 0
    address = os.environ.get(
        "JAX_COORDINATOR_ADDRESS"
    ) or launcher.get_coordinator_address(
        timeout_secs=timeout_secs,
        override_coordinator_port=os.environ.get("JAX_COORDINATOR_PORT"),
    )
    return launcher.__name__, address, count, launcher.get_process_id()


def _check_no_other_launcher() -> None:
    """Checks for a cluster in the environment that JAX does not detect."""
    size = os.environ.get("OMPI_COMM_WORLD_SIZE", "1")
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if size == "1" and address is None:
        return
    received = (
        f"OMPI_COMM_WORLD_SIZE={size}"
        if address is None
        else f"JAX_COORDINATOR_ADDRESS={address}"
    )
    raise RuntimeError(
        "The environment of a process in a cluster must define the "
        "coordinator's address, the number of processes and its own number. "
        f"Received: only {received}. Pass coordinator_address, num_processes "
        "and process_id to keras_tpu_estimator.initialize, or num_processes=1 "
        "for a single process."
    )


def _naming_source(where: str, make: Callable[[], Cluster | None]) -> Cluster | None:
    """Returns a cluster; an error names the place of its definition."""
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error} It was found in {where}.") from None
