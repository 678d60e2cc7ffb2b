"""Tests `TPUConfig`, durations, and the imports of their modules."""

import ast
import dataclasses
import importlib.util
import json
import pathlib
import pickle

import numpy as np
import pytest
from helpers import refused

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.config.tpu_config import IterationsPerLoop

V1 = kte.InputPipelineConfig.PER_HOST_V1
V2 = kte.InputPipelineConfig.PER_HOST_V2
SLICED = kte.InputPipelineConfig.SLICED


@pytest.mark.parametrize(
    ("raw", "value", "unit"),
    [
        (1, 1, "count"),
        ("1", 1, "count"),
        (123, 123, "count"),
        (np.int64(7), 7, "count"),
        ("10s", 10, "seconds"),
        ("300s", 300, "seconds"),
        ("60m", 3600, "seconds"),
        ("1h", 3600, "seconds"),
        ("1000m", 60000, "seconds"),
    ],
)
def test_iterations_are_kept_as_given_and_parsed(raw, value, unit):
    config = kte.TPUConfig(iterations_per_loop=raw)
    assert config.iterations == IterationsPerLoop(value, unit)
    assert config.iterations_per_loop == raw


def test_unset_iterations_differ_from_all_numbers():
    unset, two = kte.TPUConfig(), kte.TPUConfig(iterations_per_loop=2)
    assert unset.iterations_per_loop is unset.iterations is None
    assert two.iterations == IterationsPerLoop(2, "count")
    assert unset != two and repr(unset) != repr(two)


@pytest.mark.parametrize("iterations", [None, 2, "30s"])
def test_copies_of_a_tpu_config_behave_equally(iterations):
    config = kte.TPUConfig(iterations)
    for copied in (
        kte.TPUConfig(**json.loads(json.dumps(config._asdict()))),
        pickle.loads(pickle.dumps(config)),
        config._replace(num_shards=8)._replace(num_shards=None),
    ):
        assert (copied, hash(copied)) == (config, hash(config))
        assert copied.iterations == config.iterations


@pytest.mark.parametrize(
    "raw",
    [
        *(0, -1, 1.0, 1.5, 2.0, True, False, b"5", [5], "", "0", "0s", "s"),
        *("-1", "-1h", "+1", "+5", "01", "012", "01m", "1.5s", "1_000", "1e3", "5d"),
        *("5|", "5|s", "5s|", "5ms", "5S", "5 s", " 5", "5 ", "5\n", "\u0665"),
    ],
)
def test_other_iterations_are_refused(raw):
    words = f"iterations_per_loop positive '30s' '5m' '1h' {raw!r} 1 or more"
    with refused(ValueError, words):
        kte.TPUConfig(iterations_per_loop=raw)


@pytest.mark.parametrize(
    ("value", "unit", "error", "words"),
    [
        (0, "count", ValueError, "positive 0 1 or more"),
        (-3, "seconds", ValueError, "positive -3"),
        (2.5, "count", TypeError, "int 2.5 float"),
        (1.0, "count", TypeError, "int 1.0"),
        (True, "count", TypeError, "int True"),
        (5, "minutes", ValueError, "unit 'seconds' 'minutes' parse"),
    ],
)
def test_parsed_iterations_validate_themselves(value, unit, error, words):
    with refused(error, words):
        IterationsPerLoop(value, unit)


def test_pipeline_values_match_the_original():
    assert {each.name: each.value for each in kte.InputPipelineConfig} == {
        "PER_SHARD_V1": 1,
        "PER_HOST_V1": 2,
        "PER_HOST_V2": 3,
        "BROADCAST": 4,
        "SLICED": 5,
    }


def test_tpu_config_has_the_originals_fields_in_order():
    config = kte.TPUConfig()
    fields = [field.name for field in dataclasses.fields(config)]
    assert {name: getattr(config, name) for name in fields} == {
        "iterations_per_loop": None,
        "num_shards": None,
        "num_cores_per_replica": None,
        "per_host_input_for_training": V1,
        "tpu_job_name": None,
        "initial_infeed_sleep_secs": None,
        "input_partition_dims": None,
        "eval_training_input_configuration": V1,
        "experimental_host_call_every_n_steps": 1,
        "experimental_allow_per_host_v2_parallel_get_next": False,
        "experimental_feed_hook": None,
    }
    assert fields == [
        "iterations_per_loop",
        "num_shards",
        "num_cores_per_replica",
        "per_host_input_for_training",
        "tpu_job_name",
        "initial_infeed_sleep_secs",
        "input_partition_dims",
        "eval_training_input_configuration",
        "experimental_host_call_every_n_steps",
        "experimental_allow_per_host_v2_parallel_get_next",
        "experimental_feed_hook",
    ]


def test_tpu_config_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        kte.TPUConfig().num_shards = 8
    with pytest.raises(dataclasses.FrozenInstanceError):
        kte.TPUConfig(1).iterations.value = 2


@pytest.mark.parametrize(
    "given, stored",
    [
        (True, V1),
        (False, kte.InputPipelineConfig.PER_SHARD_V1),
        (1, kte.InputPipelineConfig.PER_SHARD_V1),
        (2, V1),
        (3, V2),
        (4, kte.InputPipelineConfig.BROADCAST),
        (5, SLICED),
        (V2, V2),
    ],
)
def test_training_input_is_stored_as_an_enum(given, stored):
    config = kte.TPUConfig(per_host_input_for_training=given)
    assert config.per_host_input_for_training is stored


@pytest.mark.parametrize(
    "fields",
    [
        {"num_shards": 1},
        {"num_shards": np.int32(8)},
        *({"num_cores_per_replica": 2**power} for power in range(8)),
        {"initial_infeed_sleep_secs": 0},
        {"initial_infeed_sleep_secs": 3},
        {"eval_training_input_configuration": V1},
        {"eval_training_input_configuration": 5},
        {"experimental_host_call_every_n_steps": 10},
        {"tpu_job_name": "worker"},
        {"experimental_allow_per_host_v2_parallel_get_next": True},
        {"experimental_feed_hook": dict},
    ],
)
def test_accepted_fields_are_stored(fields):
    config = kte.TPUConfig(**fields)
    for name, value in fields.items():
        assert getattr(config, name) == value


@pytest.mark.parametrize(
    ("name", "values", "error", "words"),
    [
        ("num_shards", (0, -1), ValueError, "positive"),
        ("num_shards", (2.0, "8", True), TypeError, "an int"),
        ("num_cores_per_replica", (0, 3, 256, 2.0, "2", True), ValueError, "one of"),
        (
            "per_host_input_for_training",
            (0, 99, None, "3"),
            ValueError,
            "PER_HOST_V2=3",
        ),
        ("initial_infeed_sleep_secs", (-1,), ValueError, "zero or positive"),
        ("initial_infeed_sleep_secs", (0.5, "3", True), TypeError, "an int"),
        (
            "eval_training_input_configuration",
            (1, V2, 4, None, True),
            ValueError,
            "SLICED=5",
        ),
        ("experimental_host_call_every_n_steps", (0,), ValueError, "positive"),
        (
            "experimental_host_call_every_n_steps",
            (1.5, None, True),
            TypeError,
            "an int",
        ),
    ],
)
def test_refused_fields_are_named(name, values, error, words):
    for value in values:
        with refused(error, f"`{name}` {words}"):
            kte.TPUConfig(**{name: value})


@pytest.mark.parametrize("dims", [[[1, 2]], [[1, 2], None], ({"x": [1, 2]},)])
def test_partitioning_goes_with_per_host_v2_and_cores(dims):
    config = kte.TPUConfig(
        input_partition_dims=dims,
        per_host_input_for_training=V2,
        num_cores_per_replica=2,
    )
    assert config.input_partition_dims == dims


# Each case fails its own check and all later ones, which shows the order.
@pytest.mark.parametrize(
    "dims, training_input, cores, error, message",
    [
        ({"x": [1]}, V1, None, TypeError, "must be a list"),
        ("ab", V1, None, TypeError, "must be a list"),
        ([], V1, None, ValueError, "one or two elements"),
        ([[1], [1], [1]], V1, None, ValueError, "one or two elements"),
        ([[1, 2]], V1, None, ValueError, "PER_HOST_V2"),
        ([[1, 2]], True, 3, ValueError, "PER_HOST_V2"),
        ([[1, 2]], V2, None, ValueError, "needs `num_cores_per_replica`"),
        ([[1, 2]], V2, 3, ValueError, "`num_cores_per_replica` must be one"),
    ],
)
def test_partitioning_is_checked_in_order(dims, training_input, cores, error, message):
    with pytest.raises(error, match=message):
        kte.TPUConfig(
            input_partition_dims=dims,
            per_host_input_for_training=training_input,
            num_cores_per_replica=cores,
        )


def imports_of(module):
    """The names of all modules that a module imports anywhere."""
    source = pathlib.Path(importlib.util.find_spec(module).origin).read_text()
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
            if node.module == "keras_tpu_estimator":
                names |= {f"{node.module}.{a.name}" for a in node.names}
    return names


@pytest.mark.parametrize(
    "module",
    [
        "api.config.tpu_config",
        "base.common.modes",
        "base.common.topology",
        "api.config.run_config",
        "base.hosts.launching",
        "base.hosts.supervising",
    ],
)
def test_lowest_modules_need_no_framework(module):
    reached, waiting = set(), {f"keras_tpu_estimator.{module}"}
    while waiting:
        name = waiting.pop()
        assert name.split(".")[0] not in ("keras", "jax", "tensorflow"), reached
        # The package itself imports everything.
        assert name != "keras_tpu_estimator", reached
        reached.add(name)
        if name.startswith("keras_tpu_estimator."):
            waiting |= imports_of(name) - reached


def test_search_finds_imports():
    assert "keras" in imports_of("keras_tpu_estimator.base.upstream.keras_state")
    assert "keras_tpu_estimator.base.tracing.variables" in imports_of(
        "keras_tpu_estimator.base.tracing.gradient_requests"
    )
