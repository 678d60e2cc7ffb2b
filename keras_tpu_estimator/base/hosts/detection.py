"""Detection of this process's cluster from arguments and the environment."""

import contextlib
import functools
import importlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from keras_tpu_estimator.base.hosts import parent_process, starters
from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.starter import Definition, Environment
from keras_tpu_estimator.base.hosts.task import Task
from keras_tpu_estimator.base.upstream import jax_clusters

T = TypeVar("T")

_logger = logging.getLogger("keras_tpu_estimator")

# Set by `python -m keras_tpu_estimator launch` in each process.
ADDRESS_VARIABLE = "KTE_COORDINATOR_ADDRESS"
COUNT_VARIABLE = "KTE_NUM_PROCESSES"
ID_VARIABLE = "KTE_PROCESS_ID"

# The variables that MPI's starters set.
_MPI_VARIABLES = {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"}

_ARGUMENTS = ("coordinator_address", "num_processes", "process_id")
_VARIABLES = (ADDRESS_VARIABLE, COUNT_VARIABLE, ID_VARIABLE)


def find_cluster(timeout_secs: int) -> Cluster:
    """Returns the cluster of this process, from its environment.

    The first of these that defines a cluster is used: the variables of `python -m
    keras_tpu_estimator launch`, TF_CONFIG, those of starters of processes, the
    launchers that JAX detects, and the variables of starters of machines. Starters
    complete each other if they agree, such as MPI inside SLURM. An evaluator or a
    parameter server of TF_CONFIG, and a client of Pathways, are single processes.

    Args:
        timeout_secs: Seconds to wait for the address of the coordinator.

    Raises:
        RuntimeError: The environment says that there are several processes, but
            defines the cluster incompletely.
        ValueError: A definition is contradictory.
    """
    decided = _decided()
    if decided is not None:
        return decided
    sources = (
        *(starter.read for starter in starters.OF_PROCESSES),
        lambda _: _from_jax(jax_clusters.launcher, timeout_secs),
        *(starter.read for starter in starters.OF_MACHINES),
        lambda _: _from_ray_train(),
    )
    definition = _collected(sources)
    if not definition.is_complete:
        definition = definition.completed_by(_from_mpi4py(os.environ) or Definition())
    if definition.is_complete:
        return _cluster_of(definition)
    _check_defines_nothing(definition)
    _warn_if_others_are_possible()
    return Cluster()


def read_cluster() -> Cluster:
    """Returns the same from environment variables only, without any request.

    An incomplete definition is that of a single process, because the program may still
    call `initialize` with arguments.
    """
    decided = _decided()
    if decided is not None:
        return decided
    definition = _collected(
        (
            *(starter.read for starter in starters.OF_PROCESSES),
            lambda _: _from_jax(jax_clusters.launcher_of_environment, timeout_secs=1),
            *(starter.read for starter in starters.OF_MACHINES),
        )
    )
    return _cluster_of(definition) if definition.is_complete else Cluster()


def _decided() -> Cluster | None:
    """Returns the cluster of sources that no other one completes."""
    cluster = _from_variables() or from_tf_config()
    platforms = os.environ.get("JAX_PLATFORMS", "").split(",")
    # One client of Pathways controls the devices of all machines.
    return Cluster() if cluster is None and "proxy" in platforms else cluster


def _collected(
    sources: Iterable[Callable[[Environment], Definition | None]],
) -> Definition:
    """Returns the definition of the first sources that together are complete."""
    definition = Definition()
    for read in sources:
        further = read(os.environ)
        if further is not None:
            definition = definition.completed_by(further)
        if definition.is_complete:
            break
    return definition


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
    count = starters.integer(os.environ, COUNT_VARIABLE)
    number = starters.integer(os.environ, ID_VARIABLE)
    return _naming_source(
        f"the environment variables {', '.join(_VARIABLES)}",
        lambda: _complete(_VARIABLES, (address, count, number)),
    )


def _from_jax(
    launcher: Callable[[], jax_clusters.Launcher | None], timeout_secs: int
) -> Definition | None:
    """Returns the definition of a launcher that JAX knows."""
    try:
        return _queried(launcher(), timeout_secs)
    # Launchers query metadata servers, and packages that may be missing.
    except Exception as error:
        raise RuntimeError(
            "JAX could not detect the cluster of this process. Received: "
            f"{type(error).__name__}: {error}. Pass coordinator_address, "
            "num_processes and process_id to keras_tpu_estimator.initialize, "
            "or num_processes=1 for a single process."
        ) from error


def _queried(
    launcher: jax_clusters.Launcher | None, timeout_secs: int
) -> Definition | None:
    """Returns the definition of a launcher."""
    if launcher is None:
        return None
    source = f"what JAX found ({launcher.__name__})"
    count = launcher.get_process_count()
    if count == 1:
        return Definition(source, count=count)
    address = launcher.get_coordinator_address(
        timeout_secs=timeout_secs,
        override_coordinator_port=os.environ.get("JAX_COORDINATOR_PORT"),
    )
    return Definition(source, address, count, launcher.get_process_id())


def _from_mpi4py(environment: Environment) -> Definition | None:
    """Returns the definition of MPI itself, if this process belongs to a job of MPI.

    A child process of a member must not start MPI.
    """
    if not environment.keys() & _MPI_VARIABLES or parent_process.is_child():
        return None
    return _from_jax(jax_clusters.mpi4py_launcher, timeout_secs=1)


def _check_defines_nothing(definition: Definition) -> None:
    """Checks that no starter is present, or raises the error of the first."""
    for starter in (
        *starters.OF_PROCESSES,
        *starters.OF_MACHINES,
        *starters.READ_BY_JAX,
    ):
        if starter.read(os.environ) is not None:
            raise RuntimeError(starter.incomplete(os.environ, definition))


@functools.cache
def _warn_if_others_are_possible() -> None:
    """Warns of an environment in which this process may have been started alone."""
    tasks = os.environ.get("SLURM_NTASKS", "1")
    if tasks != "1":
        _logger.warning(
            "SLURM reserves %s tasks, but srun has not started this process. It trains "
            "alone. Start it with srun to train in all tasks.",
            tasks,
        )
    if {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= os.environ.keys():
        _logger.warning(
            "This pod belongs to an indexed Kubernetes Job, and trains alone. If the "
            "job has several pods, install jax[k8s], with which JAX finds them."
        )


def _cluster_of(definition: Definition) -> Cluster:
    """Returns the cluster of a complete definition."""
    if definition.count == 1:
        return Cluster()
    count, number = definition.count or 0, definition.number or 0
    return _naming_source(
        definition.source,
        lambda: Cluster(definition.address, count, number, definition.local_id),
    )


def _naming_source(where: str, make: Callable[[], T]) -> T:
    """Returns a cluster; an error names the place of its definition."""
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error} It was found in {where}.") from None


def _from_ray_train() -> Definition | None:
    """Returns the cluster of this worker of Ray Train; `None` in other processes.

    Ray joins workers on GPUs and TPUs, but not on CPUs, and it sets no variables. Each
    worker must call this. The first one selects a port and broadcasts its address.
    """
    context = _ray_context()
    if context is None or context.get_world_size() == 1:
        return None
    count, number = context.get_world_size(), context.get_world_rank()
    try:
        collective = importlib.import_module("ray.train.collective")
    except ImportError as error:
        raise RuntimeError(
            "Workers of Ray Train must have joined, or be able to exchange an address. "
            f"Received: worker {number} of {count}, with a version of Ray Train that "
            "supports neither. Set RAY_TRAIN_V2_ENABLED=1, or call "
            "keras_tpu_estimator.initialize(coordinator_address='host:port', "
            f"num_processes={count}, process_id={number}), or "
            "initialize(num_processes=1) to train alone in this process."
        ) from error
    address = collective.broadcast_from_rank_zero(None if number else _free_address())
    return Definition("Ray Train", address, count, number)


def _ray_context() -> Any:
    """Returns Ray's context of this worker; `None` elsewhere."""
    train = sys.modules.get("ray.train")
    context = None
    # Ray Train raises errors of several types outside its workers.
    with contextlib.suppress(Exception):
        context = None if train is None else train.get_context()
        if context is not None and context.get_world_rank() is None:
            return None
    return context


def _free_address() -> str:
    """Returns the address of this machine, with a free port."""
    host = importlib.import_module("ray.util").get_node_ip_address()
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{host}:{probe.getsockname()[1]}"
