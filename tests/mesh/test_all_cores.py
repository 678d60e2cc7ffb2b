"""Which replicas hosts may have, alone and together."""

import types

import jax
import numpy as np
import pytest

from keras_tpu_estimator.base.topology import Topology
from keras_tpu_estimator.config.validation import check_cores_per_replica
from keras_tpu_estimator.mesh.all_cores import _hosts_per_replica


def mesh_of(hosts_of_replicas):
    """A mesh whose replicas have cores of these hosts."""
    devices = np.array(
        [
            [types.SimpleNamespace(process_index=host) for host in each]
            for each in hosts_of_replicas
        ]
    )
    return types.SimpleNamespace(
        is_multi_process=True,
        axis_names=("batch", "model"),
        shape={"batch": devices.shape[0], "model": devices.shape[1]},
        devices=devices,
    )


@pytest.mark.parametrize(
    ("replicas", "hosts", "expected"),
    [
        ([[0], [0], [1], [1]], 2, 1),
        ([[0, 0], [0, 0], [1, 1], [1, 1]], 2, 1),
        ([[0, 0, 1, 1]], 2, 2),
        ([[0, 1], [2, 3]], 4, 2),
        ([[0, 0, 1, 1], [2, 2, 3, 3]], 4, 2),
    ],
)
def test_hosts_of_a_replica(monkeypatch, replicas, hosts, expected):
    monkeypatch.setattr(jax, "process_count", lambda: hosts)
    assert _hosts_per_replica(mesh_of(replicas), "batch") == expected


@pytest.mark.parametrize(
    ("replicas", "hosts"),
    [
        ([[0, 0], [0, 1], [1, 1]], 2),
        ([[1, 1], [0, 0]], 2),
        ([[0, 2], [1, 3]], 4),
        ([[0, 0], [1, 1], [1, 1]], 2),
    ],
)
def test_hosts_that_share_replicas_partly(monkeypatch, replicas, hosts):
    monkeypatch.setattr(jax, "process_count", lambda: hosts)
    with pytest.raises(ValueError, match="should have whole hosts"):
        _hosts_per_replica(mesh_of(replicas), "batch")


@pytest.mark.parametrize(
    ("cores", "total", "on_host"), [(2, 8, 4), (4, 8, 4), (8, 8, 4), (8, 16, 4)]
)
def test_cores_of_replicas(cores, total, on_host):
    check_cores_per_replica(cores, total, on_host)


@pytest.mark.parametrize(
    ("cores", "total", "on_host"), [(3, 8, 4), (6, 12, 4), (8, 12, 4)]
)
def test_cores_that_are_of_no_whole_hosts(cores, total, on_host):
    with pytest.raises(ValueError, match="or be that of several hosts"):
        check_cores_per_replica(cores, total, on_host)


def test_who_reads_what():
    shared = Topology(2, 4, 3, cores_per_replica=8, hosts_per_replica=2)
    assert (shared.num_readers, shared.reader_index) == (2, 1)
    assert shared.replicas_per_host == 1
    alone = shared.of_lone_hosts
    assert (alone.num_replicas, alone.cores_per_replica) == (4, 4)
    assert (alone.num_readers, alone.reader_index) == (4, 3)
