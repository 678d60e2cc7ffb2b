"""Tests `RunConfig`: its fields, TF_CONFIG, `replace` and warnings."""

import dataclasses
import inspect
import pathlib
import warnings

import numpy as np
import pytest
from helpers import in_cluster

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.config.options import is_anything, options_of


class Cluster:
    """The used part of a cluster resolver."""

    def master(self):
        return "grpc://resolved:8470"


class ConfigProto:
    """The used part of a `ConfigProto`."""

    def __init__(self, cluster_def=False):
        self.cluster_def = cluster_def

    def HasField(self, name):  # noqa: N802
        return getattr(self, name)


class ParameterServerStrategyV2:
    """A strategy that is recognized by name, because TensorFlow is not imported."""


class Strategies:
    """The used part of a `DistributeConfig`."""

    def __init__(self, train=None, evaluation=None):
        self.train_distribute = train
        self.eval_distribute = evaluation


@pytest.fixture
def tf_config(monkeypatch):
    """Sets TF_CONFIG for one test."""

    def set_to(value):
        in_cluster(monkeypatch, value)

    return set_to


def test_arguments_have_the_order_of_the_original():
    parameters = inspect.signature(kte.RunConfig).parameters.values()
    by_position = [p.name for p in parameters if p.kind != p.KEYWORD_ONLY]
    assert by_position == [
        "tpu_config",
        "evaluation_master",
        "master",
        "cluster",
    ]


def test_defaults_match_the_original():
    config = kte.RunConfig()
    for name, value in {
        "tpu_config": kte.TPUConfig(),
        "evaluation_master": "",
        "master": "",
        "cluster": None,
        "model_dir": None,
        "tf_random_seed": None,
        "save_summary_steps": 100,
        "save_checkpoints_steps": None,
        "save_checkpoints_secs": 600,
        "session_config": None,
        "keep_checkpoint_max": 5,
        "keep_checkpoint_every_n_hours": 10000,
        "log_step_count_steps": 100,
        "train_distribute": None,
        "device_fn": None,
        "protocol": None,
        "eval_distribute": None,
        "experimental_distribute": None,
        "experimental_max_worker_delay_secs": None,
        "session_creation_timeout_secs": 7200,
        "checkpoint_save_graph_def": True,
    }.items():
        assert getattr(config, name) == value, name


LOCAL = {
    "task_type": "worker",
    "task_id": 0,
    "is_chief": True,
    "cluster_spec": {},
    "num_ps_replicas": 0,
    "num_worker_replicas": 1,
    "global_id_in_cluster": 0,
    "service": None,
    "master": "",
    "evaluation_master": "",
}


def properties_of(config):
    return {name: getattr(config, name) for name in LOCAL}


def test_every_field_is_checked():
    """Each field is checked by its `option` or by its conversion."""
    options = options_of(kte.RunConfig)
    fields = [field.name for field in dataclasses.fields(kte.RunConfig) if field.init]
    assert [*options] == fields
    converted = {
        *("tpu_config", "model_dir", "executables", "metric_writers"),
        "compilation_cache_dir",
    }
    assert converted == {
        name
        for name, option in options.items()
        if option.is_valid is is_anything and option.unread is None
    }


def test_config_is_immutable_and_equal_by_value():
    config = kte.RunConfig(model_dir="/tmp/a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model_dir = "/tmp/b"
    assert config == kte.RunConfig(model_dir="/tmp/a")
    assert config != kte.RunConfig(model_dir="/tmp/b")
    assert hash(config) == hash(kte.RunConfig(model_dir="/tmp/a"))


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="save_steps"):
        kte.RunConfig(save_steps=1)
    with pytest.raises(TypeError, match="positional"):
        kte.RunConfig(None, None, None, None, "/tmp/a")


@pytest.mark.parametrize("wrong", ["/tmp/run", {"iterations_per_loop": 2}, 8])
def test_first_argument_must_not_be_a_directory(wrong):
    with pytest.raises(TypeError, match="must be a TPUConfig.*model_dir="):
        kte.RunConfig(wrong)


@pytest.mark.parametrize(
    "given, stored",
    [
        ("/tmp/a", "/tmp/a"),
        ("gs://bucket/a", "gs://bucket/a"),
        (pathlib.PurePosixPath("/tmp/a"), "/tmp/a"),
        (b"/tmp/a", "/tmp/a"),
        (None, None),
    ],
)
def test_directory_is_stored_as_a_string(given, stored):
    assert kte.RunConfig(model_dir=given).model_dir == stored
    assert kte.RunConfig().replace(model_dir=given).model_dir == stored


@pytest.mark.parametrize(
    "name, value",
    [
        ("tf_random_seed", 0),
        ("tf_random_seed", -1),
        ("tf_random_seed", np.int64(3)),
        ("tf_random_seed", None),
        ("save_summary_steps", 0),
        ("save_summary_steps", None),
        ("save_summary_steps", 1),
        ("save_checkpoints_steps", 0),
        ("save_checkpoints_steps", 10),
        ("save_checkpoints_secs", 0),
        ("save_checkpoints_secs", 0.5),
        ("keep_checkpoint_max", 0),
        ("keep_checkpoint_max", None),
        ("keep_checkpoint_max", 1),
        ("keep_checkpoint_every_n_hours", 0.5),
        ("keep_checkpoint_every_n_hours", None),
        ("log_step_count_steps", 1),
        ("log_step_count_steps", None),
        ("session_creation_timeout_secs", 7200),
        ("checkpoint_save_graph_def", True),
        ("micro_batches", 1),
        ("micro_batches", None),
        ("micro_batches", np.int64(4)),
        ("dtype_policy", "float32"),
        ("dtype_policy", "mixed_bfloat16"),
        ("synchronize_batch_norm", True),
        ("remat", "full"),
        ("remat", "activations"),
        ("checkpoint_format", "hdf5"),
        ("checkpoint_format", "tensorflow"),
        ("checkpoint_format", "orbax"),
        ("export_backend", "tensorflow"),
        ("export_timeout_secs", None),
        ("export_timeout_secs", 0.5),
        ("executables", None),
        ("executables", "/compiled"),
        ("compilation_cache_dir", None),
        ("compilation_cache_dir", "gs://bucket/cache"),
    ],
)
def test_accepted_values_are_stored(name, value):
    assert getattr(kte.RunConfig(**{name: value}), name) == value
    assert getattr(kte.RunConfig().replace(**{name: value}), name) == value


REFUSED = [
    ("model_dir", "", ValueError, "empty string"),
    ("model_dir", 3, TypeError, "must be a path"),
    ("tf_random_seed", 1.0, ValueError, "an int"),
    ("tf_random_seed", "1", ValueError, "an int"),
    ("tf_random_seed", True, ValueError, "an int"),
    ("save_summary_steps", -1, ValueError, ">= 0"),
    ("save_summary_steps", "100", ValueError, ">= 0"),
    ("save_summary_steps", True, ValueError, ">= 0"),
    ("save_checkpoints_steps", -1, ValueError, ">= 0"),
    ("save_checkpoints_steps", "9", ValueError, ">= 0"),
    ("save_checkpoints_steps", True, ValueError, ">= 0"),
    ("save_checkpoints_secs", -0.1, ValueError, ">= 0"),
    ("save_checkpoints_secs", "9", ValueError, ">= 0"),
    ("save_checkpoints_secs", False, ValueError, ">= 0"),
    ("save_checkpoints_secs", float("nan"), ValueError, ">= 0"),
    ("keep_checkpoint_max", -1, ValueError, ">= 0"),
    ("keep_checkpoint_max", True, ValueError, ">= 0"),
    ("keep_checkpoint_every_n_hours", 0, ValueError, "> 0"),
    ("keep_checkpoint_every_n_hours", -1, ValueError, "> 0"),
    ("keep_checkpoint_every_n_hours", True, ValueError, "> 0"),
    ("log_step_count_steps", 0, ValueError, "> 0"),
    ("log_step_count_steps", -5, ValueError, "> 0"),
    ("log_step_count_steps", True, ValueError, "> 0"),
    ("train_distribute", ParameterServerStrategyV2(), ValueError, "not be a"),
    ("eval_distribute", ParameterServerStrategyV2(), ValueError, "not be a"),
    ("device_fn", "/cpu:0", ValueError, "'op'"),
    ("device_fn", lambda node: None, ValueError, "'op'"),
    ("device_fn", lambda op, more: None, ValueError, "'op'"),
    ("protocol", "http", ValueError, "grpc"),
    ("protocol", "", ValueError, "grpc"),
    ("experimental_max_worker_delay_secs", 1.5, ValueError, "an int"),
    ("experimental_max_worker_delay_secs", True, ValueError, "an int"),
    ("session_creation_timeout_secs", 0, ValueError, "> 0"),
    ("micro_batches", 0, ValueError, ">= 1"),
    ("micro_batches", 2.0, ValueError, ">= 1"),
    ("micro_batches", True, ValueError, ">= 1"),
    ("dtype_policy", "bfloat16", ValueError, "mixed_bfloat16"),
    ("dtype_policy", "mixed_float16", ValueError, "mixed_bfloat16"),
    ("synchronize_batch_norm", 1, ValueError, "a bool"),
    ("remat", "larger_than", ValueError, "full"),
    ("remat", True, ValueError, "full"),
    ("keep_best", "loss", ValueError, r"KeepBest\('loss', mode='min'\)"),
    ("checkpoint_format", "h5", ValueError, "'hdf5', 'tensorflow' or 'orbax'"),
    ("export_backend", "torch", ValueError, "'jax' or 'tensorflow'"),
    ("export_timeout_secs", 0, ValueError, "None for no limit"),
    ("input_state_max_bytes", -1, ValueError, "an int >= 0"),
    ("input_state_max_bytes", 1.5, ValueError, "an int >= 0"),
    ("max_input_shapes", 0, ValueError, "an int >= 1, or None"),
    ("max_input_shapes", True, ValueError, "an int >= 1, or None"),
    ("session_creation_timeout_secs", -1, ValueError, "> 0"),
    ("executables", "gs://a/b", ValueError, "a local folder"),
    ("executables", 3, TypeError, "a path"),
    ("compilation_cache_dir", 3, TypeError, "a path"),
    ("compilation_cache_dir", "", ValueError, "a path or None"),
]


@pytest.mark.parametrize("name, value, error, message", REFUSED)
def test_refused_values_are_named(name, value, error, message):
    with pytest.raises(error, match=rf"`{name}` .*{message}"):
        kte.RunConfig(**{name: value})
    with pytest.raises(error, match=rf"`{name}` .*{message}"):
        kte.RunConfig().replace(**{name: value})


@pytest.mark.parametrize(
    "strategies, name",
    [
        (Strategies(ParameterServerStrategyV2()), "train"),
        (Strategies(None, ParameterServerStrategyV2()), "eval"),
    ],
)
def test_strategies_inside_others_are_refused(strategies, name):
    message = rf"experimental_distribute\.{name}_distribute"
    with pytest.raises(ValueError, match=message):
        kte.RunConfig(experimental_distribute=strategies)


@pytest.mark.parametrize(
    "given, steps, secs",
    [
        ({}, None, 600),
        ({"save_checkpoints_steps": 50}, 50, None),
        ({"save_checkpoints_steps": 0}, 0, None),
        ({"save_checkpoints_secs": 50}, None, 50),
        ({"save_checkpoints_secs": 0}, None, 0),
        # A single `None` requests no checkpoints instead of the default.
        ({"save_checkpoints_steps": None}, None, None),
        ({"save_checkpoints_secs": None}, None, None),
        (
            {"save_checkpoints_steps": None, "save_checkpoints_secs": None},
            None,
            None,
        ),
        (
            {"save_checkpoints_steps": 5, "save_checkpoints_secs": None},
            5,
            None,
        ),
    ],
)
def test_checkpoints_are_saved_by_steps_or_seconds(given, steps, secs):
    config = kte.RunConfig(**given)
    assert config.save_checkpoints_steps == steps
    assert config.save_checkpoints_secs == secs


@pytest.mark.parametrize("steps, secs", [(1, 1), (0, 600), (5, 0)])
def test_steps_and_seconds_are_exclusive(steps, secs):
    both = {"save_checkpoints_steps": steps, "save_checkpoints_secs": secs}
    with pytest.raises(ValueError, match="Only one of `save_checkpoints"):
        kte.RunConfig(**both)
    with pytest.raises(ValueError, match="Only one of `save_checkpoints"):
        kte.RunConfig().replace(**both)


@pytest.mark.parametrize(
    "first, then, steps, secs",
    [
        ({}, {}, None, 600),
        ({}, {"save_checkpoints_steps": 5}, 5, None),
        ({}, {"save_checkpoints_steps": 0}, 0, None),
        ({}, {"save_checkpoints_steps": None}, None, 600),
        ({}, {"save_checkpoints_secs": None}, None, None),
        ({"save_checkpoints_steps": 5}, {"save_checkpoints_secs": 7}, None, 7),
        (
            {"save_checkpoints_steps": 5},
            {"save_checkpoints_secs": None},
            5,
            None,
        ),
        ({"save_checkpoints_steps": 5}, {"keep_checkpoint_max": 1}, 5, None),
        (
            {"save_checkpoints_steps": 5},
            {"save_checkpoints_steps": None, "save_checkpoints_secs": 7},
            None,
            7,
        ),
    ],
)
def test_replacing_one_interval_clears_the_other(first, then, steps, secs):
    config = kte.RunConfig(**first).replace(**then)
    assert config.save_checkpoints_steps == steps
    assert config.save_checkpoints_secs == secs


def test_replace_makes_a_deep_copy():
    dims = [[2, 1]]
    tpu_config = kte.TPUConfig(
        input_partition_dims=dims,
        per_host_input_for_training=kte.InputPipelineConfig.PER_HOST_V2,
        num_cores_per_replica=2,
    )
    config = kte.RunConfig(tpu_config, model_dir="/tmp/a", tf_random_seed=1)
    other = config.replace(model_dir="/tmp/b")
    assert (config.model_dir, other.model_dir) == ("/tmp/a", "/tmp/b")
    assert other.tf_random_seed == 1
    assert other.tpu_config == tpu_config
    assert other.tpu_config is not tpu_config
    dims[0][0] = 1
    assert other.tpu_config.input_partition_dims == [[2, 1]]


def test_replace_leaves_the_original_after_an_error():
    config = kte.RunConfig(keep_checkpoint_max=2)
    with pytest.raises(ValueError, match="keep_checkpoint_max"):
        config.replace(tf_random_seed=3, keep_checkpoint_max=-1)
    assert config == kte.RunConfig(keep_checkpoint_max=2)


def test_replace_keeps_the_class():
    class Derived(kte.RunConfig):
        pass

    assert type(Derived().replace(tf_random_seed=1)) is Derived


def test_tpu_config_is_replaced():
    tpu_config = kte.TPUConfig(iterations_per_loop=100)
    assert kte.RunConfig().replace(tpu_config=tpu_config) == kte.RunConfig(tpu_config)
    with pytest.raises(TypeError, match="must be a TPUConfig"):
        kte.RunConfig().replace(tpu_config=100)


@pytest.mark.parametrize(
    "name",
    ["master", "evaluation_master", "cluster", "task_type", "_task", "steps"],
)
def test_other_fields_are_not_replaced(name):
    with pytest.raises(ValueError, match=f"'{name}'.*cannot.*'model_dir'"):
        kte.RunConfig().replace(**{name: "x"})


def test_repr_shows_only_set_fields():
    assert repr(kte.RunConfig()) == "RunConfig()"
    shown = repr(kte.RunConfig(model_dir="/tmp/a", keep_checkpoint_max=None))
    assert shown == "RunConfig(model_dir='/tmp/a', keep_checkpoint_max=None)"


WITHOUT_EFFECT = {
    "evaluation_master": "grpc://other:8470",
    "master": "grpc://tpu:8470",
    "session_config": ConfigProto(),
    "train_distribute": object(),
    "device_fn": lambda op: None,
    "protocol": "grpc+verbs",
    "eval_distribute": object(),
    "experimental_distribute": Strategies(object()),
    "experimental_max_worker_delay_secs": 3,
    "session_creation_timeout_secs": 60,
    "checkpoint_save_graph_def": False,
}
TPU_WITHOUT_EFFECT = {
    "tpu_job_name": "worker",
    "initial_infeed_sleep_secs": 3,
    "experimental_allow_per_host_v2_parallel_get_next": True,
    "experimental_feed_hook": dict,
}


def caught(function):
    """The warnings of a function."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = function()
    return result, seen


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_field_without_effect_is_stored_and_warns(name):
    value = WITHOUT_EFFECT[name]
    config, (warning,) = caught(lambda: kte.RunConfig(**{name: value}))
    assert getattr(config, name) is value
    assert warning.category is UserWarning
    assert f"JAX: {name}. Leave" in str(warning.message)


@pytest.mark.parametrize("name", TPU_WITHOUT_EFFECT)
def test_field_of_tpu_config_without_effect_warns(name):
    tpu_config = kte.TPUConfig(**{name: TPU_WITHOUT_EFFECT[name]})
    _, (warning,) = caught(lambda: kte.RunConfig(tpu_config))
    assert f"JAX: TPUConfig.{name}. Leave" in str(warning.message)


def test_one_warning_names_all_fields_and_the_users_line():
    tpu_config = kte.TPUConfig(**TPU_WITHOUT_EFFECT)
    line = inspect.currentframe().f_lineno + 1
    _, seen = caught(lambda: kte.RunConfig(tpu_config, **WITHOUT_EFFECT))
    (warning,) = seen
    message = str(warning.message)
    listed = message.split("JAX: ")[1].removesuffix(". Leave them out.")
    assert set(listed.split(", ")) == {
        *WITHOUT_EFFECT,
        *(f"TPUConfig.{name}" for name in TPU_WITHOUT_EFFECT),
    }
    assert (warning.filename, warning.lineno) == (__file__, line)


def test_replace_warns_only_about_new_fields():
    config, _ = caught(lambda: kte.RunConfig(master="grpc://tpu:8470"))
    other, seen = caught(lambda: config.replace(tf_random_seed=1))
    assert not seen
    line = inspect.currentframe().f_lineno + 1
    _, (warning,) = caught(lambda: other.replace(protocol="grpc"))
    assert "JAX: protocol. Leave" in str(warning.message)
    assert (warning.filename, warning.lineno) == (__file__, line)


def test_replacing_the_tpu_config_warns_about_its_fields():
    tpu_config = kte.TPUConfig(tpu_job_name="worker")
    with pytest.warns(UserWarning, match="JAX: TPUConfig.tpu_job_name. "):
        kte.RunConfig().replace(tpu_config=tpu_config)


@pytest.mark.parametrize(
    "quiet",
    [
        {"master": ""},
        {"evaluation_master": ""},
        {"cluster": None},
        {"tpu_config": kte.TPUConfig(initial_infeed_sleep_secs=0)},
    ],
)
def test_default_values_do_not_warn(quiet):
    assert caught(lambda: kte.RunConfig(**quiet))[1] == []


def test_a_cluster_has_one_address():
    cluster = Cluster()
    with pytest.raises(ValueError, match="one of `master` and `cluster`"):
        kte.RunConfig(master="", cluster=cluster)
    with pytest.raises(ValueError, match="not have a cluster_def with `cluster`"):
        kte.RunConfig(cluster=cluster, session_config=ConfigProto(True))
    with pytest.warns(UserWarning, match="cluster, session_config"):
        kte.RunConfig(cluster=cluster, session_config=ConfigProto(False))


@pytest.mark.parametrize("value", [{}, "config", 1])
def test_a_session_config_is_a_config_proto(value):
    with pytest.raises(ValueError, match="`session_config` must be a Conf"):
        kte.RunConfig(session_config=value)
    with pytest.raises(ValueError, match="`session_config` must be a Conf"):
        kte.RunConfig().replace(session_config=value)


RESOLVED = "grpc://resolved:8470"


@pytest.mark.parametrize(
    "given, environment, master, evaluation_master",
    [
        ({}, {}, "", ""),
        ({"master": "m"}, {}, "m", "m"),
        ({"master": "m", "evaluation_master": "e"}, {}, "m", "e"),
        ({"master": "m", "evaluation_master": ""}, {}, "m", ""),
        ({"evaluation_master": "e"}, {}, "", "e"),
        ({"cluster": Cluster()}, {}, RESOLVED, RESOLVED),
        ({}, {"session_master": "s"}, "s", "s"),
        ({"master": ""}, {"session_master": "s"}, "", ""),
        ({"master": "m"}, {"session_master": "s"}, "m", "m"),
        ({"cluster": Cluster()}, {"session_master": "s"}, RESOLVED, RESOLVED),
        ({}, {"eval_session_master": "v"}, "", "v"),
        ({"master": "m"}, {"eval_session_master": "v"}, "m", "v"),
        ({"evaluation_master": "e"}, {"eval_session_master": "v"}, "", "e"),
    ],
)
def test_masters_are_resolved(tf_config, given, environment, master, evaluation_master):
    tf_config(environment)
    config, seen = caught(lambda: kte.RunConfig(**given))
    assert config.master == master
    assert config.evaluation_master == evaluation_master
    # Only values in the script cause warnings.
    assert len(seen) == any(given.values())


CLUSTER = {
    "chief": ["c0:1"],
    "worker": ["w0:1", "w1:1"],
    "ps": ["p0:1", "p1:1", "p2:1"],
}
OLD_CLUSTER = {"master": ["m0:1"], "worker": ["w0:1"]}


def task_of(task_type, index, cluster=CLUSTER, **more):
    task = {"type": task_type, "index": index}
    return {"cluster": cluster, "task": task, **more}


@pytest.mark.parametrize(
    "environment",
    [
        "",
        {},
        {"task": {}},
        {"cluster": {}},
        {"task": {"type": "worker"}},
        {"task": {"type": "worker", "index": 0}},
        {"task": {"index": "0"}},
        {"environment": "cloud"},
    ],
)
def test_single_process_is_a_chief(tf_config, environment):
    tf_config(environment)
    assert properties_of(kte.RunConfig()) == LOCAL


@pytest.mark.parametrize(
    "environment, task_id, is_chief, global_id",
    [
        (task_of("chief", 0), 0, True, 0),
        (task_of("worker", 0), 0, False, 1),
        (task_of("worker", 1), 1, False, 2),
        (task_of("worker", "1"), 1, False, 2),
        (task_of("ps", 0), 0, False, 3),
        (task_of("ps", 2), 2, False, 5),
    ],
)
def test_process_of_a_cluster(tf_config, environment, task_id, is_chief, global_id):
    tf_config(environment)
    assert properties_of(kte.RunConfig()) == LOCAL | {
        "task_type": environment["task"]["type"],
        "task_id": task_id,
        "is_chief": is_chief,
        "cluster_spec": CLUSTER,
        "num_ps_replicas": 3,
        "num_worker_replicas": 3,
        "global_id_in_cluster": global_id,
    }


def test_a_master_is_a_chief(tf_config):
    tf_config(task_of("master", 0, OLD_CLUSTER))
    assert properties_of(kte.RunConfig()) == LOCAL | {
        "task_type": "master",
        "cluster_spec": OLD_CLUSTER,
        "num_worker_replicas": 2,
    }


def test_an_evaluator_is_outside_the_cluster(tf_config):
    tf_config(task_of("evaluator", 3, session_master="s"))
    assert properties_of(kte.RunConfig()) == LOCAL | {
        "task_type": "evaluator",
        "task_id": 3,
        "is_chief": False,
        "num_worker_replicas": 0,
        "global_id_in_cluster": None,
        "master": "s",
    }


def test_returned_environment_is_a_copy(tf_config):
    tf_config(task_of("chief", 0, service={"key": ["value"]}))
    config = kte.RunConfig()
    config.cluster_spec["worker"].clear()
    config.service["key"].clear()
    assert config.num_worker_replicas == 3
    assert config.service == {"key": ["value"]}


def test_replace_keeps_the_task(tf_config, monkeypatch):
    tf_config(task_of("worker", 1))
    config = kte.RunConfig()
    monkeypatch.delenv("TF_CONFIG")
    other = config.replace(tf_random_seed=1)
    assert properties_of(other) == properties_of(config)


@pytest.mark.parametrize(
    "environment, error, message",
    [
        ("{", ValueError, "must be JSON"),
        ("[1]", TypeError, "JSON object"),
        ('"worker"', TypeError, "JSON object"),
        ({"cluster": ["c0:1"]}, TypeError, "`cluster` in TF_CONFIG"),
        ({"task": "worker"}, TypeError, "`task` in TF_CONFIG"),
        ({"service": "local"}, TypeError, "`service` in TF_CONFIG"),
        ({"model_dir": 5}, TypeError, "model_dir.*must be a path"),
        ({"task": {"type": "ps"}}, ValueError, "Without a cluster"),
        ({"task": {"type": "chief"}}, ValueError, "Without a cluster"),
        ({"task": {"type": "evaluator"}}, ValueError, "Without a cluster"),
        ({"task": {"index": 1}}, ValueError, "Without a cluster"),
        ({"task": {"index": -1}}, ValueError, "Without a cluster"),
        ({"task": {"index": "one"}}, ValueError, "must be an int"),
        ({"task": {"index": None}}, ValueError, "must be an int"),
        (
            task_of("worker", 0, {"worker": ["w0:1"]}),
            ValueError,
            "exactly one chief",
        ),
        (
            task_of("worker", 0, {"chief": [], "worker": ["w0:1"]}),
            ValueError,
            "exactly one chief",
        ),
        (
            task_of("chief", 0, {"chief": ["c0:1", "c1:1"]}),
            ValueError,
            "exactly one chief",
        ),
        (
            task_of("master", 0, {"master": ["c0:1", "c1:1"]}),
            ValueError,
            "exactly one chief",
        ),
        (
            task_of("chief", 0, CLUSTER | OLD_CLUSTER),
            ValueError,
            "Received both",
        ),
        ({"cluster": CLUSTER}, ValueError, "a type and an index"),
        (
            {"cluster": CLUSTER, "task": {"index": 0}},
            ValueError,
            "a type and an index",
        ),
        (
            {"cluster": CLUSTER, "task": {"type": "worker"}},
            ValueError,
            "a type and an index",
        ),
        (task_of("worker", 2), ValueError, "from 0 to 1"),
        (task_of("worker", -1), ValueError, "from 0 to 1"),
        (task_of("chief", 1), ValueError, "from 0 to 0"),
        (task_of("worker", 0.5), ValueError, "must be an int"),
        (task_of("worker", True), ValueError, "must be an int"),
        (task_of("boss", 0), ValueError, "'evaluator' or in the cluster"),
        (task_of("master", 0), ValueError, "'evaluator' or in the cluster"),
        (
            task_of("ps", 0, {"chief": ["c0:1"]}),
            ValueError,
            "'evaluator' or in the cluster",
        ),
        (task_of("evaluator", -1), ValueError, "at least 0"),
        (
            task_of("evaluator", 0, OLD_CLUSTER),
            ValueError,
            "must have a chief",
        ),
    ],
)
def test_invalid_environment_is_refused(tf_config, environment, error, message):
    tf_config(environment)
    with pytest.raises(error, match=message):
        kte.RunConfig()


@pytest.mark.parametrize(
    "given, environment, stored",
    [
        (None, "/tmp/e", "/tmp/e"),
        ("/tmp/e", "/tmp/e", "/tmp/e"),
        (pathlib.PurePosixPath("/tmp/e"), "/tmp/e", "/tmp/e"),
        ("/tmp/a", None, "/tmp/a"),
    ],
)
def test_directory_may_be_in_the_environment(tf_config, given, environment, stored):
    tf_config({"model_dir": environment})
    assert kte.RunConfig(model_dir=given).model_dir == stored


def test_two_different_directories_are_refused(tf_config):
    tf_config({"model_dir": "/tmp/e"})
    with pytest.raises(ValueError, match="/tmp/a.*/tmp/e.*Set one"):
        kte.RunConfig(model_dir="/tmp/a")
