"""The role of this process: a member of a cluster, or a single process."""

import contextlib
import dataclasses
import os

from keras_tpu_estimator.base.hosts import detection, parent_process
from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.membership import Membership
from keras_tpu_estimator.base.upstream import jax_clusters


@dataclasses.dataclass(frozen=True)
class Alone:
    """The role of a process that joins no others, despite its environment.

    Attributes:
        cluster: Its place by the environment.
        ignores_calls: Whether `initialize` ignores its arguments, which otherwise must
            match.
    """

    cluster: Cluster = Cluster()
    ignores_calls: bool = False


@dataclasses.dataclass(frozen=True)
class Waiting:
    """The role of a process that waits, or has waited in vain, for others."""

    cluster: Cluster


_settled: Membership | Alone | Waiting | None = None


def settle(role: Membership | Alone | Waiting | None) -> None:
    """Sets the role of this process; `None` if it is undecided."""
    global _settled
    _settled = role


def settled() -> Membership | Alone | Waiting | None:
    """Returns the role of this process; `None` if it is undecided.

    A cluster that the program joined by `jax.distributed.initialize` counts.
    """
    client = jax_clusters.coordination_client()
    now = _settled
    if isinstance(now, Membership) and now.store.client is not client:
        # The program has left this cluster.
        now.leave()
        parent_process.unmark()
        now = None
    if now is None:
        joined = jax_clusters.joined_cluster()
        if joined is not None and joined[1] > 1:
            now = Membership(Cluster(*joined), client)
            take_place(now.cluster)
            now.begin()
    settle(now)
    return now


def known_place() -> Cluster | None:
    """Returns the place in the joined or the parent's cluster, without any request."""
    if isinstance(_settled, Alone | Waiting):
        return _settled.cluster
    joined = jax_clusters.joined_cluster()
    return None if joined is None else Cluster(*joined)


def take_place(cluster: Cluster) -> None:
    """Prevents child processes from taking `cluster` or the environment's place."""
    clusters = [cluster]
    with contextlib.suppress(ValueError, TypeError, RuntimeError):
        clusters.append(detection.read_cluster())
    parent_process.mark(clusters)


def membership() -> Membership | None:
    """Returns the connection to the other processes, if there are any."""
    now = settled()
    return now if isinstance(now, Membership) else None


def _is_alone_when_forked() -> None:
    """Leaves the cluster to the parent process."""
    joined = jax_clusters.joined_cluster()
    if joined is not None:
        settle(Alone(Cluster(*joined)))
        jax_clusters.forget_cluster()


# Whether this process was forked after its parent had used JAX.
_cannot_compute = False


def check_not_forked() -> None:
    """Raises a `RuntimeError` if this process was forked after its parent used JAX."""
    if _cannot_compute:
        raise RuntimeError(
            "An estimator needs a process in which JAX can start its threads. "
            "Received: a process that was forked after its parent had used "
            "JAX, where every computation would hang. Start it with "
            'multiprocessing.get_context("spawn"), or fork before the first '
            "call of an estimator or of JAX."
        )


def _note_use_of_devices() -> None:
    global _cannot_compute
    _cannot_compute = _cannot_compute or jax_clusters.devices_are_in_use()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_is_alone_when_forked)
    os.register_at_fork(after_in_child=_note_use_of_devices)
