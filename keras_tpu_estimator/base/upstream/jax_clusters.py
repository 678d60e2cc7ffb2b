"""The cluster of this process in JAX, and the launchers that JAX detects.

Public JAX joins a cluster, but does not report the cluster without using a device.
"""

import ctypes
import os
from importlib.util import find_spec
from typing import Any, TypeAlias

from keras_tpu_estimator.base.upstream.private_names import PrivateName

_CLUSTERS = PrivateName("detects launchers", ("jax._src.clusters",))
_DISTRIBUTED = PrivateName("holds the cluster", ("jax._src.distributed",))
_IS_IN_USE = PrivateName(
    "reports whether this process has used a device",
    ("jax._src.xla_bridge.backends_are_initialized",),
)

# JAX's class for one way to start processes.
Launcher: TypeAlias = type[Any]


def devices_are_in_use() -> bool:
    """Returns whether this process has used a device; then JAX joins no cluster."""
    is_in_use: bool = _IS_IN_USE.value()
    return is_in_use


def joined_cluster() -> tuple[str, int, int] | None:
    """Returns the coordinator's address, the process count, and this process's number.

    `None` means that `jax.distributed.initialize` was not called.
    `jax.process_index()` would use a device.
    """
    state = _DISTRIBUTED.value.global_state
    if state.client is None or state.coordinator_address is None:
        return None
    return state.coordinator_address, state.num_processes, state.process_id


def launcher() -> Launcher | None:
    """Returns the launcher that `jax.distributed.initialize()` would use.

    Cases that JAX treats as clusters are excluded where JAX fails in them: a Kubernetes
    pod outside an indexed job, or without the package `kubernetes`; a TPU with one
    host; a shell in an allocation of SLURM; and Open MPI 5.
    """
    clusters = _CLUSTERS.value
    excluded: set[Launcher] = set()
    if not _is_open_mpi_4():
        excluded |= {clusters.OmpiCluster}
    if "JOB_COMPLETION_INDEX" not in os.environ or not find_spec("kubernetes"):
        excluded |= {clusters.K8sCluster}
    if _is_slurm_shell():
        excluded |= {clusters.SlurmCluster}
    if _is_one_tpu_host():
        excluded |= {clusters.GkeTpuCluster, clusters.GceTpuCluster}
    for known in clusters.ClusterEnv._cluster_types:
        if (
            known not in excluded
            and not known.opt_in_only_method
            and known.is_env_present()
        ):
            return known
    return None


def _is_open_mpi_4() -> bool:
    """Returns whether Open MPI 4 or older has started this process.

    For newer ones, JAX 0.12 starts MPI, which a child process must not do.
    """
    return "OMPI_MCA_orte_hnp_uri" in os.environ


def _is_slurm_shell() -> bool:
    """Returns whether a step of SLURM has one task, but has inherited more.

    A shell of `salloc` may be such a step, where JAX would wait for the other tasks.
    """
    return (
        os.environ.get("SLURM_STEP_NUM_TASKS") == "1"
        and os.environ.get("SLURM_NTASKS") != "1"
    )


def _is_one_tpu_host() -> bool:
    """Returns whether the environment names a TPU of one host, as in notebooks."""
    hosts = os.environ.get("TPU_PROCESS_ADDRESSES") or os.environ.get(
        "TPU_WORKER_HOSTNAMES"
    )
    return (
        bool(hosts)
        and "," not in str(hosts)
        and "MEGASCALE_NUM_SLICES" not in os.environ
    )


def coordination_client() -> Any:
    """Returns the client of JAX's coordination service; `None` in a single process."""
    return _DISTRIBUTED.value.global_state.client


def launcher_of_environment() -> Launcher | None:
    """Returns the launcher, if any, that is found without a request to a server."""
    clusters = _CLUSTERS.value
    if _is_open_mpi_4():
        return clusters.OmpiCluster
    if clusters.SlurmCluster.is_env_present() and not _is_slurm_shell():
        return clusters.SlurmCluster
    return None


def mpi4py_launcher() -> Launcher | None:
    """Returns JAX's launcher for MPI, which starts MPI in this process, if possible."""
    launcher = _CLUSTERS.value.Mpi4pyCluster
    return launcher if launcher.is_env_present() else None


def forget_cluster() -> None:
    """Makes JAX forget the cluster here, before an exit or after a fork.

    The connection stays open, because closing it would end the others.
    """
    state = _DISTRIBUTED.value.global_state
    for each in (state.preemption_sync_manager, state.client, state.service):
        if each is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
    vars(state).clear()
