"""Each starter's variables, with values as its documentation shows them."""

import logging
import re
import sys
import types

import pytest
from jax._src.clusters.mpi4py_cluster import Mpi4pyCluster

from keras_tpu_estimator.base.hosts import detection, starters
from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.starter import Definition, Field, Starter

_POD = {"KUBERNETES_SERVICE_HOST": "34.118.224.1", "HOSTNAME": "job-1-x7k2q"}
_KUBEFLOW = _POD | {
    "JOB_COMPLETION_INDEX": "1",
    "JAX_COORDINATOR_ADDRESS": "pytorch-node-0-0.pytorch:29500",
    "JAX_COORDINATOR_PORT": "29500",
    "JAX_NUM_PROCESSES": "3",
    "JAX_PROCESS_ID": "1",
}
_JAX_JOB = _POD | {
    "COORDINATOR_ADDRESS": "jaxjob-simple-worker-0",
    "COORDINATOR_PORT": "6666",
    "NUM_PROCESSES": "2",
    "PROCESS_ID": "1",
}
_XPK_GPU = _POD | {
    "JOBSET_NAME": "xpk-test",
    "REPLICATED_JOB_NAME": "slice-job",
    "JAX_COORDINATOR_ADDRESS": "xpk-test-slice-job-0-0.xpk-test",
    "JAX_COORDINATOR_PORT": "6002",
    "NNODES": "2",
    "NODE_RANK": "1",
    "GPUS_PER_NODE": "8",
    "JOB_COMPLETION_INDEX": "1",
}
_XPK_CPU = _POD | {
    "JAX_COORDINATOR_ADDRESS": "xpk-test-slice-job-0-0.xpk-test",
    "JAX_PROCESS_COUNT": "4",
    "PROCESSES_IN_JOB": "2",
    "JOB_INDEX": "1",
    "JOB_COMPLETION_INDEX": "0",
}
_TORCHRUN = {
    "MASTER_ADDR": "node1.example.com",
    "MASTER_PORT": "29500",
    "WORLD_SIZE": "8",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
_SAGE_MAKER = {
    "SM_HOSTS": '["algo-1","algo-2"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_RESOURCE_CONFIG": '{"current_host":"algo-2","hosts":["algo-1","algo-2"],'
    '"network_interface_name":"eth0"}',
}
_SKY_PILOT = {
    "SKYPILOT_NODE_IPS": "10.128.0.5\n10.128.0.6",
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "4",
}
_VERTEX = {
    "CLUSTER_SPEC": '{"cluster":{"workerpool0":["cmle-training-workerpool0-4c1-0:2222"'
    '],"workerpool1":["cmle-training-workerpool1-4c1-0:2222",'
    '"cmle-training-workerpool1-4c1-1:2222"]},"environment":"cloud",'
    '"task":{"type":"workerpool1","index":1},"job":"{}"}',
}
_OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "PMIX_NAMESPACE": "prterun-head-node-2155@1",
    "PMIX_RANK": "3",
}
_MPICH = {
    "PMI_SIZE": "4",
    "PMI_RANK": "3",
    "PMI_FD": "8",
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
}
_INTEL_MPI = _MPICH | {"I_MPI_MPIRUN": "mpirun", "I_MPI_HYDRA_TOPOLIB": "hwloc"}
_ALLOCATION = {
    "SLURM_JOB_ID": "65537",
    "SLURM_JOB_NODELIST": "node[1-4]",
    "SLURM_NTASKS": "4",
    "SLURM_TASKS_PER_NODE": "1(x4)",
}
_STEP = _ALLOCATION | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[1-4]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
}
_BATCH = _ALLOCATION | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
# The shell of `salloc`, if SLURM starts it on a node of the allocation.
_SHELL = _STEP | {
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_PROCID": "0",
}
_PATHWAYS = {
    "JAX_PLATFORMS": "proxy",
    "JAX_BACKEND_TARGET": "grpc://localhost:29000",
}


@pytest.fixture
def environment(monkeypatch):
    """Sets environment variables."""
    detection._warn_if_others_are_possible.cache_clear()

    def set_variables(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (_KUBEFLOW, Cluster("pytorch-node-0-0.pytorch:29500", 3, 1)),
        (_JAX_JOB, Cluster("jaxjob-simple-worker-0:6666", 2, 1)),
        (_XPK_GPU, Cluster("xpk-test-slice-job-0-0.xpk-test:6002", 2, 1)),
        (_XPK_CPU, Cluster("xpk-test-slice-job-0-0.xpk-test:1234", 4, 2)),
        (_TORCHRUN, Cluster("node1.example.com:29501", 8, 5)),
        (_TORCHRUN | {"MASTER_ADDR": "fd00::2"}, Cluster("[fd00::2]:29501", 8, 5)),
        (_SAGE_MAKER, Cluster("algo-1:8476", 2, 1)),
        (_SKY_PILOT, Cluster("10.128.0.5:8476", 2, 1)),
        (_VERTEX, Cluster("cmle-training-workerpool0-4c1-0:2222", 3, 2)),
        (_OPEN_MPI_5, Cluster("head-node:65006", 4, 3)),
        (_MPICH | {"JAX_COORDINATOR_ADDRESS": "a:7"}, Cluster("a:7", 4, 3)),
        (_INTEL_MPI | {"JAX_COORDINATOR_ADDRESS": "a:7"}, Cluster("a:7", 4, 3)),
        (_STEP, Cluster("node1:61441", 4, 3)),
        # With `srun --mpi=pmi2`, both define the same numbers.
        (_STEP | _MPICH, Cluster("node1:61441", 4, 3)),
        # torchrun inside srun starts several processes in each task.
        (_STEP | _TORCHRUN, Cluster("node1.example.com:29501", 8, 5)),
        (_SKY_PILOT | _TORCHRUN, Cluster("node1.example.com:29501", 8, 5)),
        (_SAGE_MAKER | _OPEN_MPI_5, Cluster("head-node:65006", 4, 3)),
        (_TORCHRUN | _KUBEFLOW, Cluster("pytorch-node-0-0.pytorch:29500", 3, 1)),
        (_STEP | {"WORLD_SIZE": "1"}, Cluster("node1:61441", 4, 3)),
        (_STEP | {"JAX_COORDINATOR_ADDRESS": "a:7"}, Cluster("a:7", 4, 3)),
        (_SAGE_MAKER | {"JAX_COORDINATOR_PORT": "9"}, Cluster("algo-1:9", 2, 1)),
        (
            {"SM_RESOURCE_CONFIG": _SAGE_MAKER["SM_RESOURCE_CONFIG"]},
            Cluster("algo-1:8476", 2, 1),
        ),
    ],
)
def test_complete_starters(variables, expected, environment):
    environment(variables)
    assert detection.find_cluster(timeout_secs=1) == expected
    assert detection.read_cluster() == expected


@pytest.mark.parametrize(
    "variables",
    [
        _KUBEFLOW | {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"},
        {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        {"WORLD_SIZE": "1", "RANK": "-1", "LOCAL_RANK": "-1"},
        {"WORLD_SIZE": "", "RANK": "", "PMI_SIZE": "", "JAX_PROCESS_ID": ""},
        # Names that other programs may also use.
        {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "RANK": "3"},
        {"NNODES": "4", "NODE_RANK": "2", "PROCESS_ID": "3", "NUM_PROCESSES": "4"},
        {"CLUSTER_SPEC": "large"},
        {"CLUSTER_SPEC": '{"nodes": 4}'},
        {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"},
        _SKY_PILOT | {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0"},
        {"PMI_SIZE": "1", "PMI_RANK": "0"},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"JOB_COMPLETION_INDEX": "1"},
        _POD,
        _PATHWAYS,
        _PATHWAYS | _POD | {"JOB_COMPLETION_INDEX": "1"},
        {"JAX_PLATFORMS": "proxy,cpu"},
    ],
)
def test_single_processes(variables, environment, caplog):
    environment(variables)
    assert detection.find_cluster(timeout_secs=1) == Cluster()
    assert detection.read_cluster() == Cluster()
    assert not caplog.records


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (_ALLOCATION, "SLURM reserves 4 tasks, but srun has not started this"),
        (_BATCH, "SLURM reserves 4 tasks"),
        (_SHELL, "SLURM reserves 4 tasks"),
        (_POD | {"JOB_COMPLETION_INDEX": "0"}, "This pod .* If the job has several"),
    ],
)
def test_possibly_single_process_warns_once(variables, message, environment, caplog):
    environment(variables)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert detection.find_cluster(timeout_secs=1) == Cluster()
    (record,) = caplog.records
    assert record.getMessage().startswith(message.split(" .*")[0])


_CALL = (
    r"keras_tpu_estimator.initialize\(coordinator_address='host:port', "
    r"num_processes={}, process_id={}\), or initialize\(num_processes=1\)"
)


@pytest.mark.parametrize(
    ("variables", "missing", "message"),
    [
        (_KUBEFLOW, "JAX_PROCESS_ID", "without JAX_PROCESS_ID, .*num_processes=3"),
        (_KUBEFLOW, "JAX_COORDINATOR_ADDRESS", "without JAX_COORDINATOR_ADDRESS"),
        (_XPK_GPU, "NODE_RANK", "without JAX_PROCESS_ID, .* or NODE_RANK"),
        (_JAX_JOB, "PROCESS_ID", "NUM_PROCESSES='2', without PROCESS_ID"),
        (_TORCHRUN, "RANK", "WORLD_SIZE='8', without RANK. Set them, or call"),
        (_TORCHRUN, "MASTER_ADDR", "without MASTER_ADDR and MASTER_PORT"),
        (
            _SAGE_MAKER | {"SM_RESOURCE_CONFIG": "{}"},
            "SM_CURRENT_HOST",
            "SM_HOSTS=.* without SM_CURRENT",
        ),
        (_SKY_PILOT, "SKYPILOT_NODE_RANK", "without SKYPILOT_NODE_RANK"),
        (_SKY_PILOT, "SKYPILOT_NODE_IPS", "without SKYPILOT_NODE_IPS"),
        (_SKY_PILOT, "SKYPILOT_NUM_NODES", "without SKYPILOT_NUM_NODES"),
        (_OPEN_MPI_5, "PMIX_NAMESPACE", "Install mpi4py for the same MPI, or set JAX"),
        (_OPEN_MPI_5, "OMPI_COMM_WORLD_RANK", "without OMPI_COMM_WORLD_RANK"),
        (_MPICH, "", "PMI_RANK='3', PMI_SIZE='4', without JAX_COORDINATOR_ADDRESS"),
        # MPICH inside SLURM starts a process of its own in each task.
        (_MPICH | _STEP, "SLURM_STEP_NODELIST", "without JAX_COORDINATOR_ADDRESS"),
        (_POD | {"JOB_COMPLETION_INDEX": "1"}, "", r"Install jax\[k8s\], with which"),
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, "", "num_processes=..., process_id=..."),
    ],
)
def test_incomplete_starters_are_refused(variables, missing, message, environment):
    variables = {name: value for name, value in variables.items() if name != missing}
    environment(variables)
    with pytest.raises(RuntimeError, match=message) as error:
        detection.find_cluster(timeout_secs=1)
    error.match(_CALL.format(".*", ".*"))
    # The program may still pass arguments.
    assert detection.read_cluster() == Cluster()


def test_contradiction_is_not_completed(environment):
    """Hydra inside srun: the tasks of SLURM start the processes of MPI."""
    environment(_MPICH | _STEP | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"})
    with pytest.raises(RuntimeError, match="without JAX_COORDINATOR_ADDRESS"):
        detection.find_cluster(timeout_secs=1)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (_TORCHRUN | {"RANK": "8"}, "Received: 8. .* found in the env.* of torchrun"),
        (_TORCHRUN | {"WORLD_SIZE": "all"}, "WORLD_SIZE must be an integer. Received"),
        (_KUBEFLOW | {"JAX_COORDINATOR_ADDRESS": "http://a:1"}, "without a scheme"),
    ],
)
def test_invalid_values_are_refused(variables, message, environment):
    environment(variables)
    with pytest.raises(ValueError, match=message):
        detection.find_cluster(timeout_secs=1)


@pytest.mark.parametrize(
    ("size", "rank", "is_found"), [(4, 3, True), (1, 0, False), (4, 2, False)]
)
def test_mpi_itself_gives_the_address(size, rank, is_found, environment, monkeypatch):
    """An mpi4py of another MPI reports a single process."""
    for name, value in {
        "is_env_present": True,
        "get_process_count": size,
        "get_process_id": rank,
    }.items():
        monkeypatch.setattr(Mpi4pyCluster, name, lambda value=value: value)
    monkeypatch.setattr(
        Mpi4pyCluster, "get_coordinator_address", lambda **_: "node1:61500"
    )
    environment(_MPICH)
    if is_found:
        assert detection.find_cluster(timeout_secs=1) == Cluster("node1:61500", 4, 3)
    else:
        with pytest.raises(RuntimeError, match="Install mpi4py for the same MPI"):
            detection.find_cluster(timeout_secs=1)


@pytest.mark.parametrize(
    ("variables", "local_id"),
    [
        (_TORCHRUN, 1),
        (_TORCHRUN | {"LOCAL_WORLD_SIZE": "1"}, None),
        (_TORCHRUN | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 1),
        # The starter has already selected the GPU.
        (_TORCHRUN | {"CUDA_VISIBLE_DEVICES": "1"}, None),
        (_OPEN_MPI_5, 1),
        (_SKY_PILOT, None),
    ],
)
def test_processes_of_one_machine_divide_its_gpus(variables, local_id, environment):
    environment(variables)
    assert detection.find_cluster(timeout_secs=1).local_id == local_id


def test_processes_of_one_machine_need_no_name_for_it(environment):
    environment(_OPEN_MPI_5 | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    assert detection.find_cluster(1) == Cluster("127.0.0.1:65006", 4, 3)


def test_records_validate_themselves():
    with pytest.raises(ValueError, match="`names` must contain a variable"):
        Field("the address", lambda _: None)
    nothing = Field("NAME", lambda _: None)
    with pytest.raises(ValueError, match="`advice` must be a sentence"):
        Starter("x", nothing, nothing, nothing, advice="Install it")


def test_definitions_complete_each_other():
    numbers = Definition("a", None, 4, 3)
    address = Definition("b", "host:1", 4)
    assert numbers.completed_by(address) == Definition("a", "host:1", 4, 3)
    assert numbers.completed_by(Definition("b", "host:1", 5)) == numbers
    assert Definition().completed_by(address) == address


@pytest.fixture
def ray_worker(monkeypatch):
    """Makes this process a worker of a fake Ray Train, which has not joined it."""

    def start(rank, size, broadcast=None):
        context = types.SimpleNamespace(
            get_world_rank=lambda: rank, get_world_size=lambda: size
        )
        modules = {
            "ray.train": types.SimpleNamespace(get_context=lambda: context),
            "ray.util": types.SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1"),
            "ray.train.collective": broadcast
            and types.SimpleNamespace(broadcast_from_rank_zero=broadcast),
        }
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    return start


def test_workers_of_ray_train_find_each_other(ray_worker):
    sent = []
    ray_worker(0, 2, lambda address: sent.append(address) or address)
    chief = detection.find_cluster(timeout_secs=1)
    assert sent == [chief.coordinator_address]
    assert re.fullmatch("10.0.0.1:[0-9]+", sent[0])
    ray_worker(1, 2, lambda address: sent[0] if address is None else "")
    assert detection.find_cluster(timeout_secs=1) == Cluster(sent[0], 2, 1)
    # The configuration must not wait for other workers.
    assert detection.read_cluster() == Cluster()


def test_other_workers_of_ray_train(ray_worker, monkeypatch):
    ray_worker(0, 1)
    assert detection.find_cluster(timeout_secs=1) == Cluster()
    ray_worker(1, 2)
    with pytest.raises(RuntimeError, match="worker 1 of 2, .* Set RAY_TRAIN_V2_EN"):
        detection.find_cluster(timeout_secs=1)
    # The process that starts the job.
    monkeypatch.setattr(sys.modules["ray.train"], "get_context", lambda: 1 / 0)
    assert detection.find_cluster(timeout_secs=1) == Cluster()


def test_names_are_unique():
    groups = (starters.OF_PROCESSES, starters.OF_MACHINES, starters.READ_BY_JAX)
    names = [starter.name for group in groups for starter in group]
    assert len({*names}) == len(names)
