"""Tests of the values that a RunConfig takes from TF_CONFIG."""

import json

import jax
import pytest
from helpers import in_cluster as joined_by

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.config.run_config import in_cluster
from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.detection import (
    ADDRESS_VARIABLE,
    COUNT_VARIABLE,
    ID_VARIABLE,
)
from keras_tpu_estimator.base.upstream import jax_clusters

_CHIEF = {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1", "p:2"]}


@pytest.fixture
def config_of(monkeypatch):
    """Makes a RunConfig in a process with a TF_CONFIG."""

    def make(tf_config, **kwargs):
        joined_by(monkeypatch, tf_config)
        return kte.RunConfig(**kwargs)

    return make


def _with(cluster, task_type, index):
    return {"cluster": cluster, "task": {"type": task_type, "index": index}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task_type", "worker"),
        ("task_id", 1),
        ("is_chief", False),
        ("num_worker_replicas", 3),
        ("num_ps_replicas", 2),
        ("global_id_in_cluster", 2),
        ("cluster_spec", _CHIEF),
        ("service", None),
    ],
)
def test_the_task(name, value, config_of):
    assert getattr(config_of(_with(_CHIEF, "worker", 1)), name) == value


def test_session_config_stays_unset_in_a_cluster(config_of):
    assert config_of(_with(_CHIEF, "chief", 0)).session_config is None


def test_results_are_copies(config_of):
    config = config_of(_with(_CHIEF, "chief", 0) | {"service": {"names": ["a"]}})
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
    # TF_CONFIG's values do not belong to the script, so they do not warn.
    config = config_of(tf_config, **arguments)
    assert (config.master, config.evaluation_master) == expected


def test_the_name_of_the_tpu_job(config_of, recwarn):
    named = {"service": {"tpu_worker_job_name": "job"}}
    config = config_of(named)
    assert config.tpu_config.tpu_job_name == "job"
    assert config.tpu_config.iterations is None
    again = config.replace(tpu_config=config.tpu_config._replace(num_shards=8))
    assert again.tpu_config.tpu_job_name == "job"
    assert config.replace(tpu_config=kte.TPUConfig()).tpu_config == config.tpu_config
    assert not recwarn
    own = kte.TPUConfig(tpu_job_name="own")
    with pytest.warns(UserWarning, match="TPUConfig.tpu_job_name"):
        assert config_of(named, tpu_config=own).tpu_config is own


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


def test_configs_are_equal_only_in_equal_processes(config_of):
    worker = config_of(_with(_CHIEF, "worker", 0))
    assert worker == config_of(_with(_CHIEF, "worker", 0))
    assert worker != config_of(_with(_CHIEF, "worker", 1))


def test_two_model_dirs(config_of):
    with pytest.raises(ValueError, match="Received: '/a' and '/b'. Set one"):
        config_of({"model_dir": "/b"}, model_dir="/a")


def test_configuration_does_not_join_a_cluster(monkeypatch):
    """It only reads the environment, and contacts no process."""
    monkeypatch.setattr(jax.distributed, "initialize", pytest.fail)
    monkeypatch.setattr(jax_clusters, "launcher", pytest.fail)
    cluster = {"chief": ["10.0.0.1:1"], "worker": ["10.0.0.2:1"]}
    task = {"type": "worker", "index": 0}
    tf_config = json.dumps({"cluster": cluster, "task": task})
    monkeypatch.setenv("TF_CONFIG", tf_config)
    config = kte.RunConfig()
    assert (config.num_worker_replicas, config.is_chief) == (2, False)
    monkeypatch.delenv("TF_CONFIG")
    for name, value in {
        ADDRESS_VARIABLE: "10.0.0.1:8476",
        COUNT_VARIABLE: "4",
        ID_VARIABLE: "1",
    }.items():
        monkeypatch.setenv(name, value)
    config = kte.RunConfig()
    assert (config.num_worker_replicas, config.is_chief) == (4, False)
    assert config.task_id == 1


def test_joined_cluster_may_exceed_the_environment():
    """A metadata server may provide more processes."""
    joined = in_cluster(kte.RunConfig(), Cluster("10.0.0.1:8476", 4, 2))
    assert (joined.num_worker_replicas, joined.is_chief) == (4, False)
    assert joined.replace(keep_checkpoint_max=2).task_id == 2
    assert in_cluster(kte.RunConfig(), Cluster()) == kte.RunConfig()
