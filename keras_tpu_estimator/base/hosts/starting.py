"""The start of a cluster: joining the other processes."""

import logging
import threading

import jax

from keras_tpu_estimator.base.common.field_checks import check_int
from keras_tpu_estimator.base.hosts import (
    detection,
    parent_process,
    shutdown,
    this_process,
)
from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.membership import Membership
from keras_tpu_estimator.base.hosts.task import Task
from keras_tpu_estimator.base.hosts.this_process import Alone, Waiting
from keras_tpu_estimator.base.upstream import jax_clusters
from keras_tpu_estimator.base.upstream.private_names import installed_version

_logger = logging.getLogger("keras_tpu_estimator")

# JAX's default of 100 seconds is long for a dead job. `host_timeout_secs` of
# `RunConfig` is shorter, and reports which process is gone.
_HEARTBEAT_SECS = 40
_SHUTDOWN_SECS = 60
_START_SECS = 300
_STARTED = "started"
_STARTED_MSECS = 10_000
# After its own timeout, JAX aborts the process; our error must come first.
_MARGIN_SECS = 60


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    initialization_timeout: int = _START_SECS,
    heartbeat_timeout_seconds: int = _HEARTBEAT_SECS,
    shutdown_timeout_seconds: int = _SHUTDOWN_SECS,
) -> None:
    """Joins the processes that train together. Each of them must call it.

    Call it before any use of a device. Without arguments, the cluster is
    detected, in this order, from the variables of `python -m
    keras_tpu_estimator launch`, from TF_CONFIG, and from those of other
    starters, such as Kubeflow, torchrun, MPI, SLURM, Cloud TPU, Kubernetes,
    SageMaker and SkyPilot. In a single process it does nothing, and may be
    omitted. A second call does nothing.

    Args:
        coordinator_address: Host and port of process 0, as in
            `"10.0.0.1:8476"`. The port must be free there. By default it is
            detected.
        num_processes: The number of processes. With 1, this is a single
            process, whatever its environment defines. By default it is
            detected.
        process_id: The number of this process, from 0. By default it is
            detected.
        initialization_timeout: Seconds in which all processes must join.
            Defaults to 300.
        heartbeat_timeout_seconds: Seconds after which JAX considers a silent
            process dead, if no estimator has reported it before. Defaults to
            40.
        shutdown_timeout_seconds: Seconds that a process waits for the others
            at the end. Defaults to 60.

    Raises:
        ValueError: The cluster is incomplete, contradicts itself, or differs
            from the one that was joined before.
        TypeError: An argument has the wrong type.
        RuntimeError: A device was used before, or the environment says that
            there are several processes, but defines the cluster incompletely.
        TimeoutError: Some processes did not join in time.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.initialize()
    >>> kte.initialize("10.0.0.1:8476", num_processes=4)
    Traceback (most recent call last):
    ...
    ValueError: A cluster must be defined by ... Add process_id, or omit ...
    """
    for name, seconds in (
        ("initialization_timeout", initialization_timeout),
        ("heartbeat_timeout_seconds", heartbeat_timeout_seconds),
        ("shutdown_timeout_seconds", shutdown_timeout_seconds),
    ):
        check_int(name, seconds, minimum=1)
    defined = detection.from_arguments(coordinator_address, num_processes, process_id)
    settled = this_process.settled()
    if settled is not None:
        _check_same(settled, defined)
        return
    parent = _place_of_parent(defined, initialization_timeout)
    if parent is not None:
        _logger.info("The parent of this process is %s.", parent)
        this_process.settle(Alone(parent))
        return
    cluster = defined or detection.find_cluster(initialization_timeout)
    detection.check_tf_config(cluster)
    if cluster.is_alone:
        if parent_process.restarts() is not None:
            shutdown.observe_program()
        if defined is not None:
            this_process.take_place(cluster)
            this_process.settle(Alone())
        return
    _join(
        cluster,
        initialization_timeout,
        heartbeat_timeout_seconds,
        shutdown_timeout_seconds,
    )


def ensure_started() -> Cluster:
    """Joins the cluster of the environment, unless one was already joined.

    Uses no device, respects `jax.distributed.initialize`, and raises the errors of
    `initialize`. Returns the cluster of this process, by default that of a single
    process.
    """
    initialize()
    joined = this_process.membership()
    return Cluster() if joined is None else joined.cluster


def known_cluster() -> Cluster:
    """Returns the cluster that this process has joined, or would join.

    This makes no request, so before joining it ignores clusters that only a metadata
    server defines. In a child process, it returns that of the parent.
    """
    return this_process.known_place() or detection.read_cluster()


def read_task() -> Task:
    """Reads this process's place in the cluster.

    Addresses are checked only when the cluster is joined, because scripts that only
    read them may have a placeholder such as `host0:0`.
    """
    task = Task.from_environment()
    return task if task.cluster_spec else Task.from_environment(known_cluster())


def _check_same(settled: Membership | Alone | Waiting, defined: Cluster | None) -> None:
    if isinstance(settled, Waiting):
        raise RuntimeError(
            f"This process is {settled.cluster}, but the others did not join "
            "in time. JAX cannot wait a second time: restart all processes."
        )
    if isinstance(settled, Alone):
        if settled.ignores_calls:
            return
        joined, alternatives = Cluster(), [settled.cluster]
    else:
        joined, alternatives = settled.cluster, []
        detection.check_tf_config(joined)
    if defined is not None and defined not in (joined, *alternatives):
        raise ValueError(
            "A process must join only one cluster, once. Received: this is "
            f"{joined}, and the arguments define {defined}. Call "
            "keras_tpu_estimator.initialize with the same arguments, or with "
            "none."
        )


def _place_of_parent(defined: Cluster | None, timeout: int) -> Cluster | None:
    """Returns the defined place, if it is that of the parent process."""
    if not parent_process.is_child():
        return None
    clusters = parent_process.parent_clusters()
    if defined is None:
        try:
            defined = detection.find_cluster(timeout)
        except RuntimeError:
            # The parent could not detect it either.
            return clusters[0] if clusters else Cluster()
    return defined if defined in clusters else None


def _join(cluster: Cluster, timeout: int, heartbeat: int, end: int) -> None:
    """Waits for all others in a thread, because JAX aborts on a timeout."""
    if jax_clusters.devices_are_in_use():
        raise RuntimeError(
            f"This is {cluster}, which must be joined before any use of a "
            "device. Received: JAX's devices are already in use. Call "
            "keras_tpu_estimator.initialize() right after the imports, before "
            "jax.devices(), JAX arrays, and Keras models and layers; or pass "
            "num_processes=1 to it for a single process."
        )
    errors: list[Exception] = []
    detection_method = None if _is_launched() else "deactivate"

    def connect() -> None:
        try:
            jax.distributed.initialize(
                cluster.coordinator_address,
                cluster.num_processes,
                cluster.process_id,
                local_device_ids=(
                    None if cluster.local_id is None else [cluster.local_id]
                ),
                cluster_detection_method=detection_method,
                initialization_timeout=timeout + _MARGIN_SECS,
                heartbeat_timeout_seconds=heartbeat,
                shutdown_timeout_seconds=end + _MARGIN_SECS,
            )
        # Any error is raised below.
        except Exception as error:
            errors.append(error)

    _logger.info("Waiting for the other processes: this is %s.", cluster)
    this_process.settle(Waiting(cluster))
    # This must precede JAX's threads, which read the environment.
    this_process.take_place(cluster)
    thread = threading.Thread(target=connect, name="join", daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise TimeoutError(_not_all_came(cluster, timeout))
    this_process.settle(None)
    for error in errors:
        parent_process.unmark()
        raise RuntimeError(
            f"This is {cluster}, which could not be joined. Received: {error}. "
            "Check that this is the address of process 0, and that its port is "
            "free."
        ) from error
    joined = this_process.membership()
    if joined is not None:
        joined.shutdown_secs = end
        _check_started_alike(joined)


def _check_started_alike(joined: Membership) -> None:
    """Checks that process 0 has the same process count and versions."""
    settings: dict[str, object] = {"number of processes": joined.count}
    for package in ("keras_tpu_estimator", "jax", "keras"):
        settings[f"version of {package}"] = installed_version(package)
    if joined.index == 0:
        joined.store.publish(_STARTED, 0, settings)
        return
    # A process 0 that calls jax.distributed.initialize publishes nothing.
    if joined.store.read(f"{_STARTED}/0", _STARTED_MSECS) is None:
        return
    of_chief = joined.store.published_value(_STARTED, 0)
    unlike = [
        f"{name} {of_chief.get(name)} in process 0 and {value} in process "
        f"{joined.index}"
        for name, value in settings.items()
        if of_chief.get(name) != value
    ]
    if unlike:
        raise ValueError(
            "All processes must be started with the same number of processes "
            f"and the same packages. Received: {'; '.join(unlike)}. Restart "
            "all of them with equal settings."
        )


def _is_launched() -> bool:
    """Returns whether JAX must ask a launcher for the devices of this process.

    Otherwise JAX would warn in Kubernetes pods that belong to no job.
    """
    try:
        return jax_clusters.launcher() is not None
    # The cluster was found without this launcher.
    except Exception:
        return False


def _not_all_came(cluster: Cluster, timeout: int) -> str:
    missing = (
        "At least one other process"
        if cluster.process_id == 0
        else "Process 0 or another process"
    )
    return (
        f"All {cluster.num_processes} processes must join at "
        f"{cluster.coordinator_address} within {timeout} seconds. {missing} "
        f"did not; this is process {cluster.process_id}. Check that all were "
        "started with the same address and number of processes, each with its "
        "own number, and that each machine can reach the address; or pass a "
        "longer initialization_timeout."
    )
