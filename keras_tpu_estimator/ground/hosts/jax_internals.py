"""Every private part of JAX that this package touches, one function each.

`tests/hosts/test_jax_internals.py` fails when JAX changes any of them.
"""

import ctypes
import os
from typing import Any
from typing import TypeAlias

from jax._src import clusters
from jax._src import distributed
from jax._src import xla_bridge

# What JAX knows of a way to start processes.
Launcher: TypeAlias = type[clusters.ClusterEnv]


def devices_are_in_use() -> bool:
    """Whether this process has touched a device.

    From then on, JAX starts no cluster.

    Returns:
        A `bool`.

    Example:

    >>> import jax
    >>> from keras_tpu_estimator.ground.hosts import jax_internals
    >>> _ = jax.devices()
    >>> jax_internals.devices_are_in_use()
    True
    """
    return xla_bridge.backends_are_initialized()


def joined_cluster() -> tuple[str, int, int] | None:
    """What `jax.distributed.initialize` was called with, by whomever.

    `jax.process_index()` would touch a device.

    Returns:
        The coordinator's address, the number of processes and that of this
        one; `None` if it was not called.

    Example:

    >>> from keras_tpu_estimator.ground.hosts import jax_internals
    >>> jax_internals.joined_cluster()
    """
    state = distributed.global_state
    if state.client is None or state.coordinator_address is None:
        return None
    return state.coordinator_address, state.num_processes, state.process_id


def launcher() -> Launcher | None:
    """The launcher of this process, if JAX knows it.

    It is the first of those that `jax.distributed.initialize()` would use. But
    JAX also takes a pod of Kubernetes that belongs to no indexed job for a part
    of one, and asks for the metadata of a TPU that is known to have one host;
    where there are none, it fails. Neither counts here.

    Returns:
        A class with the name of a launcher; `None` for a process that was
        started by none.

    Example:

    >>> from keras_tpu_estimator.ground.hosts import jax_internals
    >>> jax_internals.launcher()
    """
    passed_over: set[Launcher] = set()
    if "JOB_COMPLETION_INDEX" not in os.environ:
        passed_over |= {clusters.K8sCluster}
    if _is_one_tpu_host():
        passed_over |= {clusters.GkeTpuCluster, clusters.GceTpuCluster}
    for known in clusters.ClusterEnv._cluster_types:
        if (
            known not in passed_over
            and not known.opt_in_only_method
            and known.is_env_present()
        ):
            return known
    return None


def _is_one_tpu_host() -> bool:
    """Whether the environment names one host of a TPU, as in notebooks."""
    hosts = os.environ.get("TPU_PROCESS_ADDRESSES") or os.environ.get(
        "TPU_WORKER_HOSTNAMES"
    )
    return (
        bool(hosts)
        and "," not in str(hosts)
        and "MEGASCALE_NUM_SLICES" not in os.environ
    )


def coordination_client() -> Any:
    """The client of JAX's coordination service, whose store is of use to us.

    JAX has no public door to it.

    Returns:
        What has `key_value_set`, `blocking_key_value_get` and their like;
        `None` in a process alone.

    Example:

    >>> from keras_tpu_estimator.ground.hosts import jax_internals
    >>> jax_internals.coordination_client()
    """
    return distributed.global_state.client


def launcher_of_environment() -> Launcher | None:
    """The launcher of this process, if environment variables say all of it.

    Others ask servers of metadata.

    Returns:
        As `launcher`.

    Example:

    >>> from keras_tpu_estimator.ground.hosts import jax_internals
    >>> jax_internals.launcher_of_environment()
    """
    for known in (clusters.OmpiCluster, clusters.SlurmCluster):
        if known.is_env_present():
            return known
    return None


def forget_cluster() -> None:
    """Makes this process one that has joined nobody, without a word to others.

    For one that was forked off, and for one that is to end at once. The
    connection itself is never closed: that would tell the others.

    Example:

    >>> from keras_tpu_estimator.ground.hosts import jax_internals
    >>> jax_internals.forget_cluster()
    """
    state = distributed.global_state
    for each in (state.preemption_sync_manager, state.client, state.service):
        if each is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
    vars(state).clear()
