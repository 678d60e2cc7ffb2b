"""Every private part of JAX that this package touches, one function each.

`tests/hosts/test_jax_internals.py` fails when JAX changes any of them.
"""

import os

from jax._src import clusters
from jax._src import distributed
from jax._src import xla_bridge


def devices_are_in_use() -> bool:
    """Whether this process has touched a device.

    From then on, JAX starts no cluster.

    Returns:
        A `bool`.

    Example:

    >>> import jax
    >>> from keras_tpu_estimator.hosts import jax_internals
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

    >>> from keras_tpu_estimator.hosts import jax_internals
    >>> jax_internals.joined_cluster()
    """
    state = distributed.global_state
    if state.client is None or state.coordinator_address is None:
        return None
    return state.coordinator_address, state.num_processes, state.process_id


def launcher() -> type[clusters.ClusterEnv] | None:
    """The launcher of this process, if JAX knows it.

    It is the first of those that `jax.distributed.initialize()` would use. But
    JAX takes every pod of Kubernetes for a part of a job, and fails if it is
    none: only those of an indexed job count here.

    Returns:
        A class with the name of a launcher; `None` for a process that was
        started by none.

    Example:

    >>> from keras_tpu_estimator.hosts import jax_internals
    >>> jax_internals.launcher()
    """
    for known in clusters.ClusterEnv._cluster_types:
        is_pod = known is clusters.K8sCluster
        if known.opt_in_only_method or (
            is_pod and "JOB_COMPLETION_INDEX" not in os.environ
        ):
            continue
        if known.is_env_present():
            return known
    return None
