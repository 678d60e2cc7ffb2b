import os

import pytest

from keras_tpu_estimator.base.hosts import this_process
from keras_tpu_estimator.base.hosts.agreement import Hosts, is_chief
from keras_tpu_estimator.base.upstream import jax_clusters


def test_single_process():
    hosts = Hosts.of_this_process(patience_secs=1)
    assert hosts == Hosts() and not hosts.are_several
    assert is_chief()
    hosts.ran()
    with hosts.busy("reads"), hosts.call("train") as call:
        assert not call.is_with_others


def test_hosts_are_those_of_the_joined_cluster(member, monkeypatch):
    own = member(2, count=4)
    monkeypatch.setattr(this_process, "_settled", own)
    monkeypatch.setattr(jax_clusters, "joined_cluster", lambda: ("a:1", 4, 2))
    assert Hosts.of_this_process(7) == Hosts(2, 4, 7)
    assert own.watch.patience_secs == 7 and not is_chief()


def test_runs_are_counted(hosts_of):
    hosts = hosts_of(0)
    hosts.ran()
    hosts.ran()
    assert hosts.membership.watch.runs == 2


def test_error_in_a_call_is_published(hosts_of, member):
    with pytest.raises(KeyError), hosts_of(1).call("train"):
        raise KeyError("name")
    assert member(0)._reported().text == (
        "Host 1 has failed in train: KeyError: 'name'"
    )


def test_forked_process_is_not_a_host(hosts_of, store, monkeypatch):
    """A forked process has the objects of its parent."""
    hosts = hosts_of(1)
    assert hosts.are_several
    monkeypatch.setattr(os, "getpid", lambda: 0)
    assert not hosts.are_several
    with hosts.busy("reads"), hosts.call("train") as call:
        assert call.gather(1) == [1]
    assert not store.values
