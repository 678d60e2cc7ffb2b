import json

import pytest

import keras_tpu_estimator as kte

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
def config_of(monkeypatch):
    """Makes a RunConfig in a process with a TF_CONFIG."""

    def make(tf_config, **kwargs):
        text = tf_config
        if not isinstance(tf_config, str):
            text = json.dumps(tf_config)
        monkeypatch.setenv("TF_CONFIG", text)
        return kte.RunConfig(**kwargs)

    return make


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
def test_a_process_alone(tf_config, config_of):
    config = config_of(tf_config)
    found = tuple(getattr(config, name) for name in _PROPERTIES)
    assert found == ("worker", 0, True, 1, 0, 0)
    assert config.cluster_spec == {}
    assert config.service is None
    assert (config.master, config.evaluation_master) == ("", "")


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
def test_a_process_of_a_cluster(tf_config, expected, config_of):
    config = config_of(tf_config)
    assert tuple(getattr(config, name) for name in _PROPERTIES) == expected
    alone = expected[0] == "evaluator"
    assert config.cluster_spec == ({} if alone else tf_config["cluster"])


def test_session_config_stays_unset_in_a_cluster(config_of):
    assert config_of(_with(_CHIEF, "chief", 0)).session_config is None


def test_results_are_copies(config_of):
    config = config_of(
        _with(_CHIEF, "chief", 0) | {"service": {"names": ["a"]}}
    )
    config.cluster_spec["chief"].append("other:1")
    config.service["names"].append("b")
    assert config.cluster_spec == _CHIEF
    assert config.service == {"names": ["a"]}


@pytest.mark.parametrize(
    ("tf_config", "arguments", "expected"),
    [
        ({"session_master": "s"}, {}, ("s", "s")),
        ({"session_master": "s", "eval_session_master": "e"}, {}, ("s", "e")),
        ({"eval_session_master": "e"}, {}, ("", "e")),
        ({"session_master": "s"}, {"master": ""}, ("", "")),
        (
            {"session_master": "s", "eval_session_master": "e"},
            {"evaluation_master": ""},
            ("s", ""),
        ),
        (
            _with(_CHIEF, "evaluator", 0) | {"session_master": "s"},
            {},
            ("s", ""),
        ),
    ],
)
def test_masters(tf_config, arguments, expected, config_of):
    # No warning either: TF_CONFIG's are not the program's.
    config = config_of(tf_config, **arguments)
    assert (config.master, config.evaluation_master) == expected


@pytest.mark.parametrize("given", [None, "/of/environment"])
def test_model_dir_of_environment(given, config_of):
    config = config_of({"model_dir": "/of/environment"}, model_dir=given)
    assert config.model_dir == "/of/environment"


def test_no_model_dir_of_environment(config_of):
    assert config_of({"model_dir": None}).model_dir is None


def test_replace_keeps_the_task(config_of, monkeypatch):
    config = config_of(_with(_CHIEF, "worker", 1))
    monkeypatch.delenv("TF_CONFIG")
    assert config.replace(tf_random_seed=1).task_id == 1


def test_equal_in_equal_processes_only(config_of):
    worker = config_of(_with(_CHIEF, "worker", 0))
    assert worker == config_of(_with(_CHIEF, "worker", 0))
    assert worker != config_of(_with(_CHIEF, "worker", 1))


@pytest.mark.parametrize(
    ("tf_config", "exception", "message"),
    [
        (
            "{task:",
            ValueError,
            r"should be JSON. Received: '\{task:' \(.*\). Unset it",
        ),
        ("[1]", TypeError, r"a JSON object. Received: '\[1\]'. Unset it"),
        (
            {"service": "x"},
            TypeError,
            "`service` .* should be a dict. Received: 'x' of type str. Write",
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
            "`model_dir` in TF_CONFIG should be a path. Received: 5 of type",
        ),
        (
            {"model_dir": 0},
            TypeError,
            "`model_dir` in TF_CONFIG should be a path. Received: 0 of type",
        ),
        (
            {"model_dir": ""},
            ValueError,
            "`model_dir` in TF_CONFIG should .* Received an empty string. Pass",
        ),
        (
            {"task": {"type": "ps", "index": 0}},
            ValueError,
            "Without a cluster.*'worker' with index 0. Received: .*'ps'.*Add",
        ),
        (
            {"task": {"type": "evaluator", "index": 0}},
            ValueError,
            "Without a cluster.*Received: .*'evaluator'.*Add the cluster",
        ),
        (
            {"task": {"type": "worker", "index": 1}},
            ValueError,
            "Without a cluster.*'worker' with index 0. Received: .*1.*Add",
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
            "should be an int. Received: 'one'. Write a number",
        ),
        (
            _with(_CHIEF, "worker", True),
            ValueError,
            "should be an int. Received: True. Write a number",
        ),
        (
            _with(_CHIEF, "worker", 0.5),
            ValueError,
            "should be an int. Received: 0.5. Write a number",
        ),
        (
            _with(_CHIEF, "evaluator", -1),
            ValueError,
            "0 or more. Received: -1. Number evaluators from 0",
        ),
        (
            _with(_MASTER, "evaluator", 0),
            ValueError,
            "should have a chief. Received a master: .*. Rename it to 'chief'",
        ),
    ],
)
def test_contradictions(tf_config, exception, message, config_of):
    with pytest.raises(exception, match=message):
        config_of(tf_config)


def test_two_model_dirs(config_of):
    with pytest.raises(ValueError, match="Received: '/a' and '/b'. Set one"):
        config_of({"model_dir": "/b"}, model_dir="/a")
