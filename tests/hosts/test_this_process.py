"""Tests of the state of a process."""

import os

import pytest

from keras_tpu_estimator.base.hosts import parent_process, this_process
from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.membership import Membership
from keras_tpu_estimator.base.hosts.this_process import Alone
from keras_tpu_estimator.base.upstream import jax_clusters

HERE = ("10.0.0.1:8476", 4, 1)


@pytest.fixture
def joined(store, monkeypatch):
    """Simulates a call of `jax.distributed.initialize`."""
    monkeypatch.setattr(this_process, "_settled", None)
    monkeypatch.setenv(parent_process.PLACES_VARIABLE, "")
    monkeypatch.setattr(jax_clusters, "joined_cluster", lambda: HERE)
    begun = []
    monkeypatch.setattr(Membership, "begin", lambda self: begun.append(self))
    monkeypatch.setattr(Membership, "leave", lambda self: begun.remove(self))
    return begun


def test_cluster_joined_by_the_script_is_settled(joined, store):
    own = this_process.membership()
    assert own.cluster == Cluster(*HERE) and own.store.client is store
    assert this_process.settled() is own
    assert joined == [own]
    # Its children are not hosts.
    assert os.environ[parent_process.PLACES_VARIABLE].endswith(",10.0.0.1:8476 4 1")


def test_left_cluster_is_forgotten(joined, monkeypatch):
    this_process.membership()
    monkeypatch.setattr(jax_clusters, "joined_cluster", lambda: None)
    monkeypatch.setattr(jax_clusters, "coordination_client", lambda: None)
    assert this_process.settled() is None
    assert not joined and parent_process.PLACES_VARIABLE not in os.environ


def test_cluster_of_one_process_is_none(joined, monkeypatch):
    monkeypatch.setattr(jax_clusters, "joined_cluster", lambda: ("a:1", 1, 0))
    assert this_process.membership() is None


def test_forked_process_is_single(joined, monkeypatch):
    this_process.membership()
    forgotten = []
    monkeypatch.setattr(jax_clusters, "forget_cluster", lambda: forgotten.append(HERE))
    this_process._is_alone_when_forked()
    assert forgotten == [HERE]
    assert this_process.settled() == Alone(Cluster(*HERE))


def test_process_forked_earlier_may_join(monkeypatch):
    monkeypatch.setattr(this_process, "_settled", None)
    this_process._is_alone_when_forked()
    assert this_process.settled() is None
