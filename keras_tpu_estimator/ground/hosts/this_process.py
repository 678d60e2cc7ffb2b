"""What is settled of this process: whom it has joined, or that it is alone."""

import contextlib
import dataclasses
import os

from keras_tpu_estimator.ground.hosts import detection
from keras_tpu_estimator.ground.hosts import jax_internals
from keras_tpu_estimator.ground.hosts import lineage
from keras_tpu_estimator.ground.hosts.cluster import Cluster
from keras_tpu_estimator.ground.hosts.membership import Membership


@dataclasses.dataclass(frozen=True)
class Alone:
    """It joins no others, whatever its environment says.

    Attributes:
        place: The place that it would have by that. Defaults to none.
        ignores_calls: Whether `initialize` does nothing, whatever its
            arguments are. Defaults to `False`: they must fit.
    """

    place: Cluster = Cluster()
    ignores_calls: bool = False


@dataclasses.dataclass(frozen=True)
class Waiting:
    """It waits for the others, or has done so in vain."""

    cluster: Cluster


_settled: Membership | Alone | Waiting | None = None


def settle(as_what: Membership | Alone | Waiting | None) -> None:
    """Settles what this process is.

    Args:
        as_what: What it is from now on; `None` leaves it open.

    Example:

    >>> from keras_tpu_estimator.ground.hosts import this_process
    >>> this_process.settle(this_process.Alone())
    >>> this_process.settled()
    Alone(place=Cluster(coordinator_address=None, num_processes=1,
                        process_id=0), ignores_calls=False)
    >>> this_process.settle(None)
    """
    global _settled
    _settled = as_what


def settled() -> Membership | Alone | Waiting | None:
    """What is settled of this process, if anything is.

    What the program has joined by `jax.distributed.initialize` counts as well.

    Example:

    >>> from keras_tpu_estimator.ground.hosts import this_process
    >>> this_process.settled()
    """
    client = jax_internals.coordination_client()
    now = _settled
    if isinstance(now, Membership) and now.store.client is not client:
        # The program has left it.
        now.leave()
        lineage.unmark()
        now = None
    if now is None:
        joined = jax_internals.joined_cluster()
        if joined is not None and joined[1] > 1:
            now = Membership(Cluster(*joined), client)
            take_place(now.cluster)
            now.begin()
    settle(now)
    return now


def told_place() -> Cluster | None:
    """The place of this process, as far as it is settled, without a word.

    Returns:
        That of what it has joined, or of the process that has started it.

    Example:

    >>> from keras_tpu_estimator.ground.hosts import this_process
    >>> this_process.told_place()
    """
    if isinstance(_settled, Alone):
        return _settled.place
    if isinstance(_settled, Waiting):
        return _settled.cluster
    joined = jax_internals.joined_cluster()
    return None if joined is None else Cluster(*joined)


def take_place(cluster: Cluster) -> None:
    """Keeps processes that this one starts from what is its own.

    Args:
        cluster: Its place, beside the one that the environment tells of.

    Example:

    >>> from keras_tpu_estimator.ground.hosts import lineage
    >>> from keras_tpu_estimator.ground.hosts import this_process
    >>> from keras_tpu_estimator.ground.hosts.cluster import Cluster
    >>> this_process.take_place(Cluster("10.0.0.1:8476", 4, 1))
    >>> lineage.unmark()
    """
    places = [cluster]
    with contextlib.suppress(ValueError, TypeError, RuntimeError):
        places.append(detection.read_cluster())
    lineage.mark(places)


def membership() -> Membership | None:
    """What this process has with others, if it has joined some.

    Example:

    >>> from keras_tpu_estimator.ground.hosts import this_process
    >>> this_process.membership()
    """
    now = settled()
    return now if isinstance(now, Membership) else None


def _is_alone_when_forked() -> None:
    """Leaves to the parent what it has joined."""
    joined = jax_internals.joined_cluster()
    if joined is not None:
        settle(Alone(Cluster(*joined)))
        jax_internals.forget_cluster()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_is_alone_when_forked)
