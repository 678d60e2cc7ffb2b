"""Tests that the private parts of JAX that this package uses are unchanged."""

import inspect
import sys

import jax
import pytest
from jax._src import clusters, distributed
from jax._src.lib import _jax

from keras_tpu_estimator.base.upstream import jax_clusters


def test_devices_are_in_use():
    jax.devices()
    assert jax_clusters.devices_are_in_use()


def test_no_cluster_was_joined():
    assert not jax.distributed.is_initialized()
    assert jax_clusters.joined_cluster() is None


def test_joined_cluster(monkeypatch):
    # `test_hosts_start.py` joins one.
    state = distributed.State()
    assert (state.num_processes, state.process_id) == (1, 0)
    assert state.client is state.coordinator_address is None
    state.client = object()
    state.coordinator_address, state.num_processes = "a:1", 2
    monkeypatch.setattr(distributed, "global_state", state)
    assert jax.distributed.is_initialized()
    assert jax_clusters.joined_cluster() == ("a:1", 2, 0)


def test_launchers_of_jax():
    known = [each.__name__ for each in clusters.ClusterEnv._cluster_types]
    assert known == [
        "OmpiCluster",
        "SlurmCluster",
        "Mpi4pyCluster",
        "BaseTpuCluster",
        "GceTpuCluster",
        "GkeTpuCluster",
        "K8sCluster",
    ]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("is_env_present", []),
        (
            "get_coordinator_address",
            ["timeout_secs", "override_coordinator_port"],
        ),
        ("get_process_count", []),
        ("get_process_id", []),
    ],
)
@pytest.mark.parametrize("launcher", clusters.ClusterEnv._cluster_types)
def test_methods_of_launchers(launcher, method, parameters):
    signature = inspect.signature(getattr(launcher, method))
    assert list(signature.parameters) == parameters


def test_process_without_a_launcher():
    assert jax_clusters.launcher() is None


def test_launcher_with_environment_variables(monkeypatch):
    assert jax_clusters.launcher_of_environment() is None
    for name in ("JOB_ID", "STEP_NODELIST", "NTASKS", "PROCID", "LOCALID"):
        monkeypatch.setenv(f"SLURM_{name}", "1")
    found = jax_clusters.launcher_of_environment()
    assert found is clusters.SlurmCluster


def test_cluster_is_forgotten(monkeypatch):
    state = distributed.State()
    for name in ("client", "service", "preemption_sync_manager"):
        assert name in vars(distributed.State)
        setattr(state, name, closed := _Closed())
    state.coordinator_address, state.num_processes = "a:1", 2
    monkeypatch.setattr(distributed, "global_state", state)
    jax_clusters.forget_cluster()
    assert jax_clusters.joined_cluster() is None
    assert (state.num_processes, state.process_id) == (1, 0)
    assert state.service is state.preemption_sync_manager is None
    # The state no longer refers to it, but it still exists.
    assert sys.getrefcount(closed) == 3


class _Closed:
    pass


def test_only_pods_of_indexed_jobs_count(monkeypatch):
    monkeypatch.setattr(
        clusters.K8sCluster, "is_env_present", classmethod(lambda cls: True)
    )
    monkeypatch.setattr(jax_clusters, "find_spec", lambda name: name)
    assert jax_clusters.launcher() is None
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    assert jax_clusters.launcher() is clusters.K8sCluster
    # Without the package, JAX would warn at each start.
    monkeypatch.setattr(jax_clusters, "find_spec", lambda name: None)
    assert jax_clusters.launcher() is None


@pytest.mark.parametrize(
    ("variables", "counts"),
    [
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"TPU_PROCESS_ADDRESSES": "local"}, False),
        ({"TPU_WORKER_HOSTNAMES": "host0,host1"}, True),
        (
            {"TPU_WORKER_HOSTNAMES": "host0", "MEGASCALE_NUM_SLICES": "2"},
            True,
        ),
        ({}, True),
    ],
)
@pytest.mark.parametrize("tpu", [clusters.GkeTpuCluster, clusters.GceTpuCluster])
def test_only_tpus_of_several_hosts_count(tpu, variables, counts, monkeypatch):
    monkeypatch.setattr(tpu, "is_env_present", classmethod(lambda cls: True))
    # The import of this package sets the first on a machine without a TPU.
    for name in ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert jax_clusters.launcher() is (tpu if counts else None)


def test_store_of_the_coordination_service():
    assert jax_clusters.coordination_client() is None
    methods = dir(_jax.DistributedRuntimeClient)
    for name in (
        "key_value_set",
        "key_value_set_bytes",
        "blocking_key_value_get_bytes",
        "key_value_dir_get",
        "key_value_delete",
    ):
        assert name in methods


def test_collectives_of_cpus():
    # Without them, several processes on CPUs could not train.
    assert jax.config.jax_cpu_collectives_implementation == "gloo"
