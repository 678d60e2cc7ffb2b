import json

import pytest
from jax._src import clusters
from jax._src.clusters import cloud_tpu_cluster

from keras_tpu_estimator.base.hosts import detection
from keras_tpu_estimator.base.hosts.cluster import Cluster

_ADDRESSES = {
    "chief": ["c:1"],
    "worker": ["w:1", "w:2"],
    "ps": ["p:1"],
}
_SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_NODELIST": "node[001-004],other",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
}
_OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
_LAUNCHED = {
    "KTE_COORDINATOR_ADDRESS": "127.0.0.1:5",
    "KTE_NUM_PROCESSES": "3",
    "KTE_PROCESS_ID": "1",
}


_GKE = {
    "TPU_WORKER_HOSTNAMES": "localhost,other",
    "TPU_WORKER_ID": "1",
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "1",
    "MEGASCALE_COORDINATOR_ADDRESS": "localhost",
}


def _tf_config(task_type, index, addresses=_ADDRESSES):
    task = {"type": task_type, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": addresses, "task": task})}


@pytest.fixture
def found(monkeypatch):
    """The detected cluster with some environment variables."""

    def find(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return detection.find_cluster(timeout_secs=1)

    return find


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((None, None, None), None),
        (("a:1", 2, 1), Cluster("a:1", 2, 1)),
        ((None, 1, None), Cluster()),
        ((None, 1, 0), Cluster()),
        (("a:1", 1, 0), Cluster()),
    ],
)
def test_arguments(arguments, expected):
    assert detection.from_arguments(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a:1", None, None), "Add num_processes and process_id, or omit"),
        ((None, 2, None), "Add coordinator_address and process_id, or omit"),
        ((None, None, 0), "Add coordinator_address and num_processes, or"),
        (("a:1", 2, None), "num_processes=2, process_id=None. Add process_id"),
    ],
)
def test_some_of_the_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        detection.from_arguments(*arguments)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Cluster()),
        (_LAUNCHED, Cluster("127.0.0.1:5", 3, 1)),
        ({"KTE_NUM_PROCESSES": "1"}, Cluster()),
        (_tf_config("chief", 0), Cluster("c:1", 3, 0)),
        (_tf_config("worker", "1"), Cluster("c:1", 3, 2)),
        (
            _tf_config("worker", 0, {"master": ["m:2"], "worker": ["w:1"]}),
            Cluster("m:2", 2, 1),
        ),
        (_tf_config("evaluator", 0), Cluster()),
        (_tf_config("ps", 0), Cluster()),
        (_tf_config("chief", 0, {"chief": ["c"]}), Cluster()),
        ({"TF_CONFIG": '{"model_dir": "/run"}'}, Cluster()),
        (_SLURM, Cluster("node001:61441", 4, 2)),
        (_OPEN_MPI, Cluster("10.96.0.1:62624", 4, 3)),
        (_SLURM | {"JAX_COORDINATOR_PORT": "7"}, Cluster("node001:7", 4, 2)),
        (_SLURM | {"JAX_COORDINATOR_ADDRESS": "b:9"}, Cluster("b:9", 4, 2)),
        (_SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, Cluster()),
    ],
)
def test_environment(variables, expected, found):
    assert found(variables) == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (_LAUNCHED | _tf_config("worker", 0), Cluster("127.0.0.1:5", 3, 1)),
        (_LAUNCHED | _SLURM, Cluster("127.0.0.1:5", 3, 1)),
        (_SLURM | _tf_config("worker", 0), Cluster("c:1", 3, 1)),
        # Otherwise it would be one of the training processes.
        (_SLURM | _tf_config("evaluator", 0), Cluster()),
        (_OPEN_MPI | _SLURM, Cluster("10.96.0.1:62624", 4, 3)),
        (_SLURM | {"TF_CONFIG": "{}"}, Cluster("node001:61441", 4, 2)),
    ],
)
def test_first_source_with_settings_is_used(variables, expected, found):
    assert found(variables) == expected


@pytest.mark.parametrize(
    ("variables", "exception", "message"),
    [
        (
            {"KTE_NUM_PROCESSES": "2"},
            ValueError,
            "Add KTE_COORDINATOR_ADDRESS and KTE_PROCESS_ID, or .* It was "
            "found in the environment variables KTE_COORDINATOR_ADDRESS, ",
        ),
        (
            _LAUNCHED | {"KTE_PROCESS_ID": "3"},
            ValueError,
            "from 0 to 2, .* Received: 3. .* found in the environment variab",
        ),
        (
            _LAUNCHED | {"KTE_PROCESS_ID": "-1"},
            ValueError,
            "KTE_PROCESS_ID must be an integer. Received: '-1'. Correct",
        ),
        (
            _tf_config("worker", 0, {"chief": ["c"], "worker": ["w:1"]}),
            ValueError,
            "host:port, .* Received: 'c'. .* found in TF_CONFIG, whose chief",
        ),
        (
            _tf_config("worker", 0, {"chief": [5], "worker": ["w:1"]}),
            TypeError,
            "host:port. Received: 5 of type int. .* found in TF_CONFIG",
        ),
        (
            _tf_config("worker", 2),
            ValueError,
            "from 0 to 1, .* 2 of type 'worker'. Received: 2.",
        ),
        (
            _SLURM | {"SLURM_PROCID": "4"},
            ValueError,
            "from 0 to 3, .* Received: 4. .* found in what JAX found .Slurm",
        ),
        (
            _SLURM | {"SLURM_NTASKS": "4(x2)"},
            RuntimeError,
            "JAX could not .*ValueError: .*4.x2.*. Pass coordinator_addr.*"
            "or num_processes=1 for a single process",
        ),
        (
            _OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1.0;nothing"},
            RuntimeError,
            "JAX could not detect .*RuntimeError: Could not parse.* Pass coord",
        ),
    ],
)
def test_invalid_cluster_is_refused(variables, exception, message, found):
    with pytest.raises(exception, match=message):
        found(variables)


def test_a_tpu_of_gke(found, monkeypatch):
    monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
    assert found(_GKE) == Cluster("localhost:8482", 4, 3)


@pytest.mark.parametrize("method", ["is_env_present", "get_process_count"])
def test_unreadable_metadata_is_an_error(method, found, monkeypatch):
    def fail(cls):
        raise ConnectionError("no server of metadata")

    tpu = clusters.GceTpuCluster
    monkeypatch.setattr(tpu, "is_env_present", classmethod(lambda cls: True))
    monkeypatch.setattr(tpu, method, classmethod(fail))
    message = "ConnectionError: no server of .* or num_processes=1 for a sing"
    with pytest.raises(RuntimeError, match=message):
        found({})


@pytest.mark.parametrize("cluster", [Cluster("other:9", 3, 1), Cluster("c:1", 3, 1)])
def test_tf_config_may_have_the_same_settings(cluster, found):
    found(_tf_config("worker", 0))
    detection.check_tf_config(cluster)


@pytest.mark.parametrize(
    ("task", "cluster", "message"),
    [
        (
            ("worker", 0),
            Cluster("c:1", 3, 2),
            "by TF_CONFIG, this is process 1 of 3, .* at c:1; otherwise, it "
            "is process 2 of 3, .* Unset TF_CONFIG, or",
        ),
        (("worker", 0), Cluster("c:1", 2, 1), "process 1 of 3.*process 1 of 2"),
        (("worker", 0), Cluster(), "process 1 of 3.*it is a single process"),
        (
            ("evaluator", 0),
            Cluster("c:1", 2, 1),
            "a single process; otherwise",
        ),
    ],
)
def test_different_tf_config_is_refused(task, cluster, message, found):
    found(_tf_config(*task))
    with pytest.raises(ValueError, match=message):
        detection.check_tf_config(cluster)
