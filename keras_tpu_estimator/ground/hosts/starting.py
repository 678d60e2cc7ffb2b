"""Joining the other processes, before anything touches a device."""

import logging
import threading
from importlib.metadata import version

import jax

from keras_tpu_estimator.ground.base.field_checks import check_int
from keras_tpu_estimator.ground.hosts import detection
from keras_tpu_estimator.ground.hosts import jax_internals
from keras_tpu_estimator.ground.hosts import lineage
from keras_tpu_estimator.ground.hosts import this_process
from keras_tpu_estimator.ground.hosts.cluster import Cluster
from keras_tpu_estimator.ground.hosts.membership import Membership
from keras_tpu_estimator.ground.hosts.this_process import Alone
from keras_tpu_estimator.ground.hosts.this_process import Waiting

_logger = logging.getLogger("keras_tpu_estimator")

# A host that has not been heard of for so long is gone. JAX's own 100 seconds
# are long for a dead job. It is `RunConfig.host_timeout_secs` that says who is
# gone, a little before. At the end all are there, and some may be slow.
_HEARTBEAT_SECS = 40
_SHUTDOWN_SECS = 60
_START_SECS = 300
_STARTED = "started"
_STARTED_MSECS = 10_000
# After its time-out, JAX ends the process by a signal. The error comes first.
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
    """Joins the processes that train together; all of them call it.

    It comes before anything that touches a device. Without arguments the
    cluster is found, in this order, from what `python -m
    keras_tpu_estimator launch` set, from TF_CONFIG, and from what
    `jax.distributed.initialize` knows: Open MPI, SLURM, GKE, Cloud TPU and
    Kubernetes. A process that is alone needs no call, and does nothing in it;
    nor does a second call.

    Args:
        coordinator_address: Host and port of process 0, where the port is
            free, as in `"10.0.0.1:8476"`. Defaults to what is found.
        num_processes: How many processes there are. With 1, this one is alone,
            whatever its environment says. Defaults to what is found.
        process_id: The number of this process, from 0. Defaults to what is
            found.
        initialization_timeout: Seconds until all have to be there. Defaults to
            300.
        heartbeat_timeout_seconds: Seconds after which a process that has not
            been heard of is taken for dead, where an estimator has not
            noticed before. Defaults to 40.
        shutdown_timeout_seconds: Seconds that a process waits for the others
            when all have come to their end. Defaults to 60.

    Raises:
        ValueError: The cluster is incomplete, contradicts itself, or is not
            the one that was joined before.
        TypeError: An argument is of a wrong type.
        RuntimeError: A device was touched before, or a launcher does not say
            enough.
        TimeoutError: Some process did not come.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.initialize()
    >>> kte.initialize("10.0.0.1:8476", num_processes=4)
    Traceback (most recent call last):
    ...
    ValueError: A cluster should be given by ... Add process_id, or leave ...
    """
    for name, seconds in (
        ("initialization_timeout", initialization_timeout),
        ("heartbeat_timeout_seconds", heartbeat_timeout_seconds),
        ("shutdown_timeout_seconds", shutdown_timeout_seconds),
    ):
        check_int(name, seconds, minimum=1)
    given = detection.from_arguments(
        coordinator_address, num_processes, process_id
    )
    settled = this_process.settled()
    if settled is not None:
        _check_same(settled, given)
        return
    place = _place_of_parent(given, initialization_timeout)
    if place is not None:
        _logger.info("The process that has started this one is %s.", place)
        this_process.settle(Alone(place))
        return
    cluster = given or detection.find_cluster(initialization_timeout)
    detection.check_tf_config(cluster)
    if cluster.is_alone:
        if given is not None:
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
    """Joins the cluster of the environment, unless that was done.

    Whoever joined it, by `initialize` or by `jax.distributed.initialize`, is
    honoured, and no device is touched.

    Returns:
        The cluster that this process is in, or that of a process alone.

    Raises:
        ValueError: The environment contradicts itself, or what was joined.
        TypeError: Something in it is of a wrong type.
        RuntimeError: A device was touched before, or a launcher does not say
            enough.
        TimeoutError: Some process did not come.

    Example:

    >>> from keras_tpu_estimator.ground.hosts import starting
    >>> starting.ensure_started().num_processes
    1
    """
    initialize()
    joined = this_process.membership()
    return Cluster() if joined is None else joined.cluster


def told_cluster() -> Cluster:
    """The cluster that this process is in, or would join, without joining it.

    Until it has joined, nobody is asked: what a server of metadata would say
    is not known. A process that is started by another one is told the same.

    Returns:
        A `Cluster`; that of a process alone if nobody says anything.

    Raises:
        ValueError: What is said is incomplete or contradicts itself.
        TypeError: A part of it is of a wrong type.

    Example:

    >>> from keras_tpu_estimator.ground.hosts import starting
    >>> starting.told_cluster()
    Cluster(coordinator_address=None, num_processes=1, process_id=0)
    """
    return this_process.told_place() or detection.read_cluster()


def _check_same(
    settled: Membership | Alone | Waiting, given: Cluster | None
) -> None:
    if isinstance(settled, Waiting):
        raise RuntimeError(
            f"This process should be {settled.cluster}, but the others have "
            "not come in time. JAX cannot wait anew: start all processes again."
        )
    if isinstance(settled, Alone):
        if settled.ignores_calls:
            return
        joined, others = Cluster(), [settled.place]
    else:
        joined, others = settled.cluster, []
        detection.check_tf_config(joined)
    if given is not None and given not in (joined, *others):
        raise ValueError(
            "A process should join one cluster, once. Received: this is "
            f"{joined}, and was told to be {given}. Call "
            "keras_tpu_estimator.initialize with the same arguments, or with "
            "none."
        )


def _place_of_parent(given: Cluster | None, timeout: int) -> Cluster | None:
    """The place that is told to this process, if it is that of its parent."""
    taken = lineage.taken()
    if not taken:
        return None
    if given is None:
        try:
            given = detection.find_cluster(timeout)
        except RuntimeError:
            # Nor could the parent have found it there.
            given = taken[0]
    return given if given in taken else None


def _join(cluster: Cluster, timeout: int, heartbeat: int, end: int) -> None:
    """Waits for all others, in a thread: JAX would not raise, but abort."""
    if jax_internals.devices_are_in_use():
        raise RuntimeError(
            f"This is {cluster}, which has to be joined before a device is "
            "touched. Received: JAX's devices are in use already. Call "
            "keras_tpu_estimator.initialize() right after the imports, before "
            "jax.devices(), arrays of JAX, and Keras's models and layers; or "
            "pass num_processes=1 to it, for a process alone."
        )
    errors: list[Exception] = []
    detection_method = None if _is_launched() else "deactivate"

    def connect() -> None:
        try:
            jax.distributed.initialize(
                cluster.coordinator_address,
                cluster.num_processes,
                cluster.process_id,
                cluster_detection_method=detection_method,
                initialization_timeout=timeout + _MARGIN_SECS,
                heartbeat_timeout_seconds=heartbeat,
                shutdown_timeout_seconds=end,
            )
        # Whatever it is, it is raised below.
        except Exception as error:
            errors.append(error)

    _logger.info("Waiting for the others: this is %s.", cluster)
    this_process.settle(Waiting(cluster))
    # Before threads of JAX read the environment.
    this_process.take_place(cluster)
    thread = threading.Thread(target=connect, name="join", daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise TimeoutError(_not_all_came(cluster, timeout))
    this_process.settle(None)
    for error in errors:
        lineage.unmark()
        raise RuntimeError(
            f"This is {cluster}, which could not be joined. Received: {error}. "
            "See whether that is the address of process 0, and whether its "
            "port is free."
        ) from error
    joined = this_process.membership()
    if joined is not None:
        _check_started_alike(joined)


def _check_started_alike(joined: Membership) -> None:
    """Compares the number of processes and the versions with process 0's."""
    own: dict[str, object] = {"number of processes": joined.count}
    for package in ("keras_tpu_estimator", "jax", "keras"):
        own[f"version of {package}"] = version(package)
    if joined.index == 0:
        joined.store.publish(_STARTED, 0, own)
        return
    # Process 0 may have called jax.distributed.initialize, and publish nothing.
    if joined.store.read(f"{_STARTED}/0", _STARTED_MSECS) is None:
        return
    chiefs = joined.store.published_value(_STARTED, 0)
    unlike = [
        f"{name} {chiefs.get(name)} in process 0 and {value} in process "
        f"{joined.index}"
        for name, value in own.items()
        if chiefs.get(name) != value
    ]
    if unlike:
        raise ValueError(
            "All processes must be started with the same number of processes "
            f"and the same packages. Received: {'; '.join(unlike)}. Start all "
            "of them again with equal settings."
        )


def _is_launched() -> bool:
    """Whether JAX shall ask a launcher which devices are this process's.

    Asked for nothing, JAX warns in pods that belong to no job.
    """
    try:
        return jax_internals.launcher() is not None
    # One that does not answer was not needed to find the cluster.
    except Exception:
        return False


def _not_all_came(cluster: Cluster, timeout: int) -> str:
    missing = (
        "At least one of the others"
        if cluster.process_id == 0
        else "Process 0, or another one,"
    )
    return (
        f"All {cluster.num_processes} processes should meet at "
        f"{cluster.coordinator_address} within {timeout} seconds. {missing} "
        f"did not come to this one, which is process {cluster.process_id}. "
        "See whether all were started, with the same address and number of "
        "processes and each with its own number, and whether the address can "
        "be reached from each machine; or pass a longer "
        "initialization_timeout."
    )
