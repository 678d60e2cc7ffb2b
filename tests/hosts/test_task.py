import json

import pytest

from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.task import Task

_CHIEF = {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1", "p:2"]}
_MASTER = {"master": ["m:1"], "worker": ["w:1"], "ps": ["p:1"]}

_PROPERTIES = (
    "task_type",
    "task_id",
    "is_chief",
    "num_worker_replicas",
    "num_ps_replicas",
    "global_id_in_cluster",
)


@pytest.fixture
def task_of(monkeypatch):
    """Reads the task of a process with a TF_CONFIG."""

    def read(tf_config, *cluster):
        text = tf_config
        if not isinstance(tf_config, str):
            text = json.dumps(tf_config)
        monkeypatch.setenv("TF_CONFIG", text)
        return Task.from_environment(*cluster)

    return read


def _shown(task):
    return tuple(getattr(task, name) for name in _PROPERTIES)


def _with(cluster, task_type, index):
    return {"cluster": cluster, "task": {"type": task_type, "index": index}}


@pytest.mark.parametrize(
    "tf_config",
    [
        "",
        {},
        {"cluster": {}},
        {"environment": "cloud"},
        {"task": {"type": "worker", "index": 0}},
        {"task": {"type": "worker"}},
        {"task": {"index": "0"}},
    ],
)
def test_single_process(tf_config, task_of):
    task = task_of(tf_config)
    assert _shown(task) == ("worker", 0, True, 1, 0, 0)
    assert task.cluster_spec == {}
    assert task.service is None
    assert (task.master, task.evaluation_master) == ("", "")


@pytest.mark.parametrize(
    ("tf_config", "expected"),
    [
        (_with(_CHIEF, "chief", 0), ("chief", 0, True, 3, 2, 0)),
        (_with(_CHIEF, "worker", 0), ("worker", 0, False, 3, 2, 1)),
        (_with(_CHIEF, "worker", "1"), ("worker", 1, False, 3, 2, 2)),
        (_with(_CHIEF, "ps", 1), ("ps", 1, False, 3, 2, 4)),
        (_with(_CHIEF, "evaluator", 0), ("evaluator", 0, False, 0, 0, None)),
        (_with(_MASTER, "master", 0), ("master", 0, True, 2, 1, 0)),
        (_with(_MASTER, "worker", 0), ("worker", 0, False, 2, 1, 1)),
        (_with(_MASTER, "ps", 0), ("ps", 0, False, 2, 1, 2)),
    ],
)
def test_process_of_a_cluster(tf_config, expected, task_of):
    task = task_of(tf_config)
    assert _shown(task) == expected
    alone = expected[0] == "evaluator"
    assert task.cluster_spec == ({} if alone else tf_config["cluster"])


@pytest.mark.parametrize("tf_config", ["", {"environment": "cloud"}])
def test_process_of_a_cluster_without_tf_config(tf_config, task_of):
    chief, worker = (task_of(tf_config, Cluster("c:1", 4, number)) for number in (0, 3))
    assert _shown(chief) == ("worker", 0, True, 4, 0, 0)
    assert _shown(worker) == ("worker", 3, False, 4, 0, 3)
    assert worker.cluster_spec == {}


def test_evaluator_is_outside_the_cluster(task_of):
    evaluator = task_of(_with(_CHIEF, "evaluator", 0), Cluster())
    assert _shown(evaluator) == ("evaluator", 0, False, 0, 0, None)


@pytest.mark.parametrize(("cluster", "address"), [(_CHIEF, "c:1"), (_MASTER, "m:1")])
def test_address_of_the_chief(cluster, address, task_of):
    assert task_of(_with(cluster, "worker", 0)).chief_address == address


def test_addresses_are_copies(task_of):
    task = task_of(_with(_CHIEF, "chief", 0))
    task.addresses()["chief"].append("other:1")
    assert task.addresses() == _CHIEF


def test_no_model_dir(task_of):
    assert task_of({"model_dir": None}).model_dir is None


@pytest.mark.parametrize(
    ("tf_config", "exception", "message"),
    [
        (
            "{task:",
            ValueError,
            r"must be JSON. Received: '\{task:' \(.*\). Unset it",
        ),
        ("[1]", TypeError, r"a JSON object. Received: '\[1\]'. Unset it"),
        (
            {"service": "x"},
            TypeError,
            "`service` .* must be a dict. Received: 'x' of type str. Write",
        ),
        (
            {"cluster": ["c:1"]},
            TypeError,
            r"`cluster` .* a dict. Received: \['c:1'\] of type list. Write",
        ),
        ({"task": 0}, TypeError, "`task` .* a dict. Received: 0 of type int"),
        (
            {"model_dir": 5},
            TypeError,
            "`model_dir` in TF_CONFIG must be a path. Received: 5 of type",
        ),
        (
            {"model_dir": 0},
            TypeError,
            "`model_dir` in TF_CONFIG must be a path. Received: 0 of type",
        ),
        (
            {"model_dir": ""},
            ValueError,
            "`model_dir` in TF_CONFIG must .* Received an empty string. Pass",
        ),
        (
            {"task": {"type": "ps", "index": 0}},
            ValueError,
            "Without a cluster.*'worker' and the index 0. Received.*'ps'.*Add",
        ),
        (
            {"task": {"type": "evaluator", "index": 0}},
            ValueError,
            "Without a cluster.*Received: .*'evaluator'.*Add the cluster",
        ),
        (
            {"task": {"type": "worker", "index": 1}},
            ValueError,
            "Without a cluster.*'worker' and the index 0. Received: .*1.*Add",
        ),
        (
            _with({"worker": ["w:1"]}, "worker", 0),
            ValueError,
            "exactly one chief .*Received: .*'w:1'.*Write one address under",
        ),
        (
            _with({"chief": ["c:1", "c:2"]}, "chief", 0),
            ValueError,
            "exactly one chief .*Received: .*'c:2'.*Write one address under",
        ),
        (
            _with({"master": ["m:1", "m:2"]}, "master", 0),
            ValueError,
            "exactly one chief .*Received: .*'m:2'",
        ),
        (
            _with(_CHIEF | _MASTER, "chief", 0),
            ValueError,
            "a chief or a master. Received both: .*. Remove the master",
        ),
        (
            {"cluster": _CHIEF},
            ValueError,
            r"a type and an index. Received: \{\}. Write, for instance, \{",
        ),
        (
            {"cluster": _CHIEF, "task": {"index": 0}},
            ValueError,
            r"a type and an index. Received: \{'index': 0\}. Write",
        ),
        (
            {"cluster": _CHIEF, "task": {"type": "chief"}},
            ValueError,
            r"a type and an index. Received: \{'type': 'chief'\}. Write",
        ),
        (
            _with(_CHIEF, "boss", 0),
            ValueError,
            r"one of \['chief', 'worker', 'ps'\]. Received: 'boss'. Change it",
        ),
        (
            _with({"chief": ["c:1"]}, "ps", 0),
            ValueError,
            r"one of \['chief'\]. Received: 'ps'. Change it, or add addresses",
        ),
        (
            _with(_CHIEF, "worker", 2),
            ValueError,
            "from 0 to 1, .* 2 of type 'worker'. Received: 2. Change it",
        ),
        (
            _with(_CHIEF, "worker", -1),
            ValueError,
            "from 0 to 1, .*'worker'. Received: -1. Change it",
        ),
        (
            _with(_CHIEF, "worker", "one"),
            ValueError,
            "must be an int. Received: 'one'. Write a number",
        ),
        (
            _with(_CHIEF, "worker", True),
            ValueError,
            "must be an int. Received: True. Write a number",
        ),
        (
            _with(_CHIEF, "worker", 0.5),
            ValueError,
            "must be an int. Received: 0.5. Write a number",
        ),
        (
            _with(_CHIEF, "evaluator", -1),
            ValueError,
            "at least 0. Received: -1. Number evaluators from 0",
        ),
        (
            _with(_MASTER, "evaluator", 0),
            ValueError,
            "must have a chief. Received a master: .*. Rename it to 'chief'",
        ),
    ],
)
def test_contradictory_settings_are_refused(tf_config, exception, message, task_of):
    with pytest.raises(exception, match=message):
        task_of(tf_config)
