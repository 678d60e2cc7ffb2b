"""Tests of the replicas of one or several hosts."""

import types

import jax
import keras
import numpy as np
import pytest

from keras_tpu_estimator.api.config.validation import check_cores_per_replica
from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.base.common.topology import Topology
from keras_tpu_estimator.base.mesh import transfers
from keras_tpu_estimator.base.mesh.all_cores import _hosts_per_replica, all_cores


def mesh_of(hosts_of_replicas):
    """A mesh whose replicas have cores of these hosts."""
    devices = np.array(
        [
            [types.SimpleNamespace(process_index=host) for host in each]
            for each in hosts_of_replicas
        ]
    )
    return types.SimpleNamespace(
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
def test_hosts_of_a_replica(replicas, hosts, expected):
    assert _hosts_per_replica(mesh_of(replicas), ("batch",), hosts) == expected


@pytest.mark.parametrize(
    ("replicas", "hosts"),
    [
        ([[0, 0], [0, 1], [1, 1]], 2),
        ([[1, 1], [0, 0]], 2),
        ([[0, 2], [1, 3]], 4),
        ([[0, 0], [1, 1], [1, 1]], 2),
    ],
)
def test_hosts_that_share_only_some_replicas_are_refused(replicas, hosts):
    with pytest.raises(ValueError, match="must have complete hosts"):
        _hosts_per_replica(mesh_of(replicas), ("batch",), hosts)


def half() -> Machine:
    """Four of the eight cores."""
    return Machine(tuple(jax.devices()[4:]))


@pytest.mark.parametrize("per_replica", [1, 2, 4])
def test_mesh_has_the_cores_of_the_machine(per_replica):
    cores = all_cores(per_replica, machine=half())
    assert [*cores.mesh.devices.flat] == jax.devices()[4:]
    assert cores.topology.num_replicas == 4 // per_replica


def test_single_core_is_that_of_the_machine():
    cores = all_cores(machine=Machine(tuple(jax.devices()[5:6])))
    placed = transfers.put_whole(cores, np.ones(2), cores.replicated)
    assert placed.devices() == {jax.devices()[5]}


@pytest.mark.parametrize("sizes", [(1, 3), (3, 2)])
def test_padding_of_shards_is_removed_exactly(sizes):
    cores = all_cores(machine=half())
    rows = np.arange(16, dtype="float32").reshape(1, 8, 2)
    rows[0, ::2, 0] = [-0.0, np.nan, np.inf, -0.0]
    parts = transfers.put_parts(cores, rows, axis=1)
    sharding = cores.replicated if sum(sizes) % 4 else cores.batch_sharding(1)
    (whole,) = transfers.without_padding(cores, [parts], sizes, 1, sharding)
    assert whole.sharding.is_equivalent_to(sharding, 3)
    expected = [rows[:, : sizes[0]], rows[:, 4 : 4 + sizes[1]]]
    assert np.array(whole).tobytes() == np.concatenate(expected, 1).tobytes()


@pytest.fixture
def distribution():
    """A Keras distribution with two replicas of two cores."""
    devices = keras.distribution.list_devices()[:4]
    mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"), devices)
    layout_map = keras.distribution.LayoutMap(mesh)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layout_map)
    )
    yield
    keras.distribution.set_distribution(None)


@pytest.mark.usefixtures("distribution")
def test_distribution_is_mapped_to_another_machine():
    assert all_cores().mesh.devices.tolist() == [
        jax.devices()[:2],
        jax.devices()[2:4],
    ]
    elsewhere = all_cores(machine=half()).mesh
    assert elsewhere.axis_names == ("batch", "model")
    assert [*elsewhere.devices.flat] == jax.devices()[4:]
    with pytest.raises(ValueError, match="devices of the machine"):
        all_cores(machine=Machine(tuple(jax.devices()[6:])))


def test_a_machine_has_devices_of_this_host():
    assert Machine.from_jax().host_devices == tuple(jax.local_devices())
    with pytest.raises(ValueError, match=r"Host 1 .* of the hosts \[0\]"):
        Machine(tuple(jax.devices()), host=1)


@pytest.mark.parametrize(
    ("cores", "total", "on_host"), [(2, 8, 4), (4, 8, 4), (8, 8, 4), (8, 16, 4)]
)
def test_cores_of_replicas(cores, total, on_host):
    check_cores_per_replica(cores, total, on_host)


@pytest.mark.parametrize(
    ("cores", "total", "on_host"), [(3, 8, 4), (6, 12, 4), (8, 12, 4)]
)
def test_cores_of_incomplete_hosts_are_refused(cores, total, on_host):
    with pytest.raises(ValueError, match="or be that of several hosts"):
        check_cores_per_replica(cores, total, on_host)


def test_data_that_each_host_reads():
    shared = Topology(2, 4, 3, cores_per_replica=8, hosts_per_replica=2)
    assert (shared.num_readers, shared.reader_index) == (2, 1)
    assert shared.replicas_per_host == 1
    alone = shared.of_lone_hosts
    assert (alone.num_replicas, alone.cores_per_replica) == (4, 4)
    assert (alone.num_readers, alone.reader_index) == (4, 3)


def test_substitutes_have_the_size_of_the_host():
    devices = tuple(jax.devices())
    with pytest.raises(ValueError, match=r"as the host, 8\. Received: 2"):
        Machine(devices, substitutes=devices[:2])
    assert Machine(devices, substitutes=devices[::-1]).first == devices[-1]
