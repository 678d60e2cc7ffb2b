"""Tests joining a cluster with a fake JAX: its arguments, and errors."""

import json
import os
import threading

import jax
import keras
import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.hosts import parent_process, starting, this_process
from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.membership import Membership
from keras_tpu_estimator.base.upstream import jax_clusters
from tests.fake_hosts import Store

_HERE = ("10.0.0.1:8476", 4, 1)


class FakeJax:
    """Joins any cluster at once, and records the arguments."""

    def __init__(self):
        self.joined = None
        self.calls = []

    def initialize(self, *cluster, **options):
        self.joined = cluster
        self.calls.append((cluster, options))


@pytest.fixture
def fake_jax(monkeypatch):
    """A fake JAX without initialized devices, and no watch."""
    fake = FakeJax()
    monkeypatch.setattr(Membership, "begin", lambda self: None)
    monkeypatch.setattr(this_process, "_settled", None)
    # Restored at the end, independently of its value then.
    monkeypatch.setenv(parent_process.PLACES_VARIABLE, "")
    monkeypatch.setattr(jax.distributed, "initialize", fake.initialize)
    monkeypatch.setattr(jax_clusters, "joined_cluster", lambda: fake.joined)
    monkeypatch.setattr(jax_clusters, "devices_are_in_use", lambda: False)
    fake.store = store = Store()
    monkeypatch.setattr(
        jax_clusters,
        "coordination_client",
        lambda: store if fake.joined else None,
    )
    return fake


@pytest.fixture
def launched(monkeypatch):
    """The environment of one of four processes."""
    for name, value in zip(
        ("KTE_COORDINATOR_ADDRESS", "KTE_NUM_PROCESSES", "KTE_PROCESS_ID"),
        _HERE,
        strict=True,
    ):
        monkeypatch.setenv(name, str(value))


def tf_config(task_type, index, **cluster):
    return json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}})


def test_single_process_joins_nothing(fake_jax):
    kte.initialize()
    kte.initialize(num_processes=1)
    assert starting.ensure_started() == Cluster()
    assert not fake_jax.calls


def test_arguments_that_jax_receives(fake_jax):
    kte.initialize(*_HERE, initialization_timeout=20)
    assert fake_jax.calls == [
        (
            _HERE,
            {
                "local_device_ids": None,
                "cluster_detection_method": "deactivate",
                "initialization_timeout": 80,
                "heartbeat_timeout_seconds": 40,
                "shutdown_timeout_seconds": 120,
            },
        )
    ]


def test_processes_of_torchrun_use_one_gpu_each(fake_jax, monkeypatch):
    for name, value in {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "8475",
        "WORLD_SIZE": "4",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }.items():
        monkeypatch.setenv(name, value)
    assert starting.ensure_started() == Cluster(*_HERE)
    ((cluster, options),) = fake_jax.calls
    assert (cluster, options["local_device_ids"]) == (_HERE, [1])


def test_jax_asks_a_launcher_for_devices(fake_jax, monkeypatch):
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "1.0;tcp://10.96.0.1:34911")
    kte.initialize(*_HERE)
    assert fake_jax.calls[0][1]["cluster_detection_method"] is None


def test_unavailable_launcher_is_ignored(fake_jax, monkeypatch):
    def fail():
        raise ConnectionError

    monkeypatch.setattr(jax_clusters, "launcher", fail)
    kte.initialize(*_HERE)
    options = fake_jax.calls[0][1]
    assert options["cluster_detection_method"] == "deactivate"


@pytest.mark.parametrize("again", [(), _HERE])
def test_a_second_call_does_nothing(again, fake_jax):
    kte.initialize(*_HERE)
    kte.initialize(*again)
    assert starting.ensure_started() == Cluster(*_HERE)
    assert len(fake_jax.calls) == 1


@pytest.mark.parametrize(
    "other", [("10.0.0.2:8476", 4, 1), ("10.0.0.1:8476", 4, 2), (None, 1, 0)]
)
def test_another_cluster_is_an_error(other, fake_jax):
    kte.initialize(*_HERE)
    with pytest.raises(
        ValueError,
        match="process 1 of 4, .*, and the arg.* define .* same arg",
    ):
        kte.initialize(*other)


def test_explicit_single_process(fake_jax, launched):
    kte.initialize(num_processes=1)
    assert starting.ensure_started() == Cluster()
    with pytest.raises(ValueError, match="is a single process, and the arg"):
        kte.initialize(*_HERE)


def test_the_environment_is_joined(fake_jax, launched):
    assert starting.ensure_started() == Cluster(*_HERE)
    assert starting.ensure_started() == Cluster(*_HERE)
    assert [cluster for cluster, _ in fake_jax.calls] == [_HERE]


def test_cluster_joined_by_the_script_is_used(fake_jax):
    jax.distributed.initialize(*_HERE)
    assert starting.ensure_started() == Cluster(*_HERE)
    kte.initialize(*_HERE)
    assert len(fake_jax.calls) == 1


def test_detected_cluster_is_returned_without_joining(fake_jax, launched):
    assert starting.known_cluster() == Cluster(*_HERE)
    assert not fake_jax.calls
    kte.initialize(num_processes=1)
    assert starting.known_cluster() == Cluster()


def test_joined_cluster_is_returned(fake_jax):
    assert starting.known_cluster() == Cluster()
    kte.initialize(*_HERE)
    assert starting.known_cluster() == Cluster(*_HERE)


def test_cluster_joined_by_the_script_is_returned_silently(fake_jax):
    jax.distributed.initialize(*_HERE)
    assert starting.known_cluster() == Cluster(*_HERE)
    assert this_process._settled is None


def test_servers_are_not_queried(fake_jax, monkeypatch):
    monkeypatch.setattr(jax_clusters, "launcher", lambda: pytest.fail("asked"))
    assert starting.known_cluster() == Cluster()


@pytest.fixture
def child(fake_jax, monkeypatch):
    """A child of process 1 of four."""
    monkeypatch.setenv(parent_process.PLACES_VARIABLE, "1,10.0.0.1:8476 4 1")


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize("given", [(), _HERE])
def test_child_does_not_join(given, fake_jax, launched):
    kte.initialize(*given)
    kte.initialize()
    kte.initialize(*_HERE)
    assert starting.ensure_started() == Cluster()
    assert not fake_jax.calls
    # A configuration has the values of the parent process.
    assert starting.known_cluster() == Cluster(*_HERE)
    with pytest.raises(ValueError, match="arguments define process 2 of 4"):
        kte.initialize("10.0.0.1:8476", 4, 2)


@pytest.mark.usefixtures("child")
def test_child_with_tf_config_does_not_join(fake_jax, monkeypatch):
    addresses = {"chief": ["c:1"], "worker": ["10.0.0.1:8476", "w:1", "w:2"]}
    monkeypatch.setenv("TF_CONFIG", tf_config("worker", 0, **addresses))
    monkeypatch.setenv(parent_process.PLACES_VARIABLE, "1,c:1 4 1")
    assert starting.ensure_started() == Cluster()
    assert not fake_jax.calls


@pytest.mark.usefixtures("child")
def test_child_of_a_process_configured_by_arguments(fake_jax, monkeypatch):
    """The parent received its cluster as arguments."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert starting.ensure_started() == Cluster()


@pytest.mark.usefixtures("child")
def test_child_may_join_another_cluster(fake_jax):
    """An inner launcher starts such processes."""
    kte.initialize("10.0.0.1:9999", 2, 1)
    assert len(fake_jax.calls) == 1
    assert parent_process.parent_clusters() == []


def test_estimator_joins(monkeypatch):
    config = kte.RunConfig()

    def join():
        raise TimeoutError("Nobody comes.")

    monkeypatch.setattr(starting, "ensure_started", join)
    with pytest.raises(TimeoutError, match="Nobody comes"):
        kte.TPUEstimator(
            lambda features, labels, mode: None, config=config, use_tpu=False
        )


def test_children_see_that_the_parent_has_joined(fake_jax, launched):
    kte.initialize("10.0.0.1:9999", 2, 1)
    _, *taken = os.environ[parent_process.PLACES_VARIABLE].split(",")
    assert taken == ["10.0.0.1:9999 2 1", "10.0.0.1:8476 4 1"]


def test_explicit_single_process_is_also_marked(fake_jax, launched):
    kte.initialize(num_processes=1)
    assert os.environ[parent_process.PLACES_VARIABLE].endswith(",10.0.0.1:8476 4 1")


def test_tf_config_is_joined(fake_jax, monkeypatch):
    addresses = {"chief": ["c:1"], "worker": ["w:1"], "ps": ["p:1"]}
    monkeypatch.setenv("TF_CONFIG", tf_config("worker", 0, **addresses))
    assert starting.ensure_started() == Cluster("c:1", 2, 1)


def test_evaluator_does_not_join(fake_jax, launched, monkeypatch):
    addresses = {"chief": ["c:1"], "worker": ["w:1"]}
    monkeypatch.setenv("TF_CONFIG", tf_config("evaluator", 0, **addresses))
    with pytest.raises(ValueError, match="this is a single process; otherwise"):
        kte.initialize()
    kte.initialize(num_processes=1)
    assert not fake_jax.calls


def test_tf_config_names_other_processes(fake_jax, monkeypatch):
    addresses = {"chief": ["c:1"], "worker": ["w:1"]}
    monkeypatch.setenv("TF_CONFIG", tf_config("worker", 0, **addresses))
    with pytest.raises(ValueError, match="process 1 of 2.*process 1 of 4"):
        kte.initialize(*_HERE)
    jax.distributed.initialize(*_HERE)
    with pytest.raises(ValueError, match="process 1 of 2.*process 1 of 4"):
        starting.ensure_started()


def test_initialized_devices_are_an_error(launched):
    jax.devices()
    with pytest.raises(
        RuntimeError,
        match="process 1 of 4, .* Call keras_tpu_estimator.initialize.. right "
        "after the imports, before jax.devices",
    ):
        starting.ensure_started()


@pytest.mark.parametrize(
    ("process", "missing"),
    [(0, "At least one other process did not"), (1, "Process 0 or another")],
)
def test_timeout_of_joining(process, missing, fake_jax, monkeypatch):
    for_ever = threading.Event()
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: for_ever.wait())
    monkeypatch.setattr(threading.Thread, "join", lambda self, timeout=None: None)
    cluster = ("a:1", 2, process)
    with pytest.raises(
        TimeoutError,
        match=f"All 2 processes must join at a:1 within 300 sec.*{missing}"
        f".*this is process {process}. Check that",
    ):
        kte.initialize(*cluster)
    assert starting.known_cluster() == Cluster(*cluster)
    with pytest.raises(RuntimeError, match="not join in time.* restart all p"):
        starting.ensure_started()
    for_ever.set()


def test_errors_of_jax_are_raised(fake_jax, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("the port is in use")

    monkeypatch.setattr(jax.distributed, "initialize", fail)
    with pytest.raises(RuntimeError, match="process 1 of 4, .*port is in use. Check"):
        kte.initialize(*_HERE)


@pytest.mark.parametrize(
    "name",
    [
        "initialization_timeout",
        "heartbeat_timeout_seconds",
        "shutdown_timeout_seconds",
    ],
)
def test_timeouts_must_be_positive(name):
    with pytest.raises(ValueError, match=f"`{name}` must be positive"):
        kte.initialize(**{name: 0})


def test_jax_accepts_the_arguments():
    # `FakeJax` accepts any arguments.
    with pytest.raises(RuntimeError, match="must be called before"):
        jax.devices()
        jax.distributed.initialize(
            *_HERE,
            cluster_detection_method="deactivate",
            initialization_timeout=1,
            heartbeat_timeout_seconds=10,
            shutdown_timeout_seconds=10,
        )


@pytest.mark.parametrize(
    ("changed", "received"),
    [
        (
            {"number of processes": 2},
            "number of processes 2 in process 0 and 4 in process 1",
        ),
        (
            {"version of jax": "0.1"},
            f"version of jax 0.1 in process 0 and {jax.__version__} in process 1",
        ),
    ],
)
def test_processes_that_were_started_differently_do_not_join(
    fake_jax, launched, changed, received
):
    """Without this check they would hang at exit."""
    versions = {
        "number of processes": 4,
        "version of keras_tpu_estimator": kte.__version__,
        "version of jax": jax.__version__,
        "version of keras": keras.__version__,
    }
    value = json.dumps(versions | changed)
    fake_jax.store.key_value_set("kte/started/0", value)
    with pytest.raises(ValueError, match=received):
        kte.initialize()


def test_process_0_publishes_how_it_was_started(fake_jax):
    kte.initialize("10.0.0.1:8476", num_processes=2, process_id=0)
    published = json.loads(fake_jax.store.values["kte/started/0"])
    assert published["number of processes"] == 2
    assert published["version of keras"] == keras.__version__


def test_child_of_a_single_process_is_single(fake_jax, monkeypatch):
    """Its environment has the same incomplete variables as that of its parent."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RuntimeError, match="without RANK"):
        kte.initialize()
    kte.initialize(num_processes=1)
    process, *places = os.environ[parent_process.PLACES_VARIABLE].split(",")
    assert (process, places) == (str(os.getpid()), [])
    # In a child process:
    this_process.settle(None)
    monkeypatch.setenv(parent_process.PLACES_VARIABLE, "1")
    kte.initialize()
    assert starting.ensure_started() == Cluster()
    assert not fake_jax.calls


def test_children_of_mpi_do_not_start_mpi(fake_jax, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setattr(jax_clusters, "mpi4py_launcher", lambda: 1 / 0)
    monkeypatch.setenv(parent_process.PLACES_VARIABLE, "1,10.0.0.1:8476 4 1")
    kte.initialize()
    assert starting.known_cluster() == Cluster(*_HERE)
    assert not fake_jax.calls
