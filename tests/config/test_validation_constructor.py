"""Tests of the errors of `TPUEstimator(...)`, of their order, and of its state."""

import functools
import itertools
import json
import os
import pathlib
import tempfile

import numpy as np
import pytest
from helpers import linear, model_fn_of, refused

import keras_tpu_estimator as kte

PER_CORE_INPUT_OF_SPLIT_MODEL = kte.TPUConfig(
    per_host_input_for_training=False, num_cores_per_replica=2
)


def model_fn(features, labels, mode, params):
    return model_fn_of(linear)(features, labels, mode, params)


def without_features(labels, mode, params):
    del labels, mode, params


def without_params(features, labels, mode):
    del features, labels, mode


def with_more(features, labels, mode, params, depth, width=3):
    del features, labels, mode, params, depth, width


class Overriding(kte.TPUEstimator):
    def train(self, *args, **kwargs):
        return self


def construct(estimator_class=kte.TPUEstimator, tpu_config=None, **changes):
    """Constructs a valid estimator with the given changes."""
    config = kte.RunConfig(
        tpu_config=tpu_config, model_dir=changes.pop("config_dir", None)
    )
    arguments = {
        "model_fn": model_fn,
        "config": config,
        "train_batch_size": 16,
        "eval_batch_size": 16,
        "predict_batch_size": 16,
    }
    return estimator_class(**arguments | changes)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Makes temporary directories in the test's own folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


# By name: the wrong arguments, the exception and words of its message, in the order of
# the checks. Cases with one number test the same check.
REFUSED = {
    "1 no config": (
        {"config": None},
        ValueError,
        "RunConfig None RunConfig(model_dir=",
    ),
    "1 other config": (
        {"config": {"a": 1}},
        ValueError,
        "RunConfig dict",
    ),
    "2 params 3": ({"params": 3}, TypeError, "`params` dict 3 int params={"),
    "2 params list": ({"params": ["rate"]}, TypeError, "`params` dict ['rate'] list"),
    "2 batch_size": (
        {"params": {"rate": 0.1, "batch_size": 8}},
        ValueError,
        "'batch_size' 'context' Rename",
    ),
    "2 context": ({"params": {"context": None}}, ValueError, "'context' Rename"),
    "3 no train_batch_size": (
        {"train_batch_size": None},
        ValueError,
        "`train_batch_size` None use_tpu=True `train_batch_size=64` `use_tpu=False`",
    ),
    "5 zero": ({"train_batch_size": 0}, ValueError, "`train_batch_size` positive 0"),
    "6 input per core of a split model": (
        {"tpu_config": PER_CORE_INPUT_OF_SPLIT_MODEL},
        ValueError,
        "PER_SHARD_V1 num_cores_per_replica=2 Use PER_HOST_V1 PER_HOST_V2",
    ),
    "7 -8": ({"eval_batch_size": -8}, ValueError, "`eval_batch_size` positive -8"),
    "8 -1": ({"predict_batch_size": -1}, ValueError, "`predict_batch_size` -1"),
    "11 none": ({"model_fn": None}, TypeError, "`model_fn` callable None NoneType"),
    "11 no features": (
        {"model_fn": without_features},
        ValueError,
        "`features` ['labels', 'mode', 'params']",
    ),
    "12 no params": (
        {"model_fn": without_params, "params": {}},
        ValueError,
        "`params` ['features', 'labels', 'mode'] Add",
    ),
    "14 more": ({"model_fn": with_more}, ValueError, "['depth', 'width'] `params`"),
    "15 overridden": (
        {"estimator_class": Overriding},
        ValueError,
        "'train' Overriding Rename",
    ),
}
# These are last; their order does not matter.
ALSO_REFUSED = {
    "directory 3": ({"model_dir": 3}, TypeError, "`model_dir` path 3 int string"),
    "directory 0": ({"model_dir": 0}, TypeError, "`model_dir` path 0 int"),
    "two directories": (
        {"model_dir": "here", "config_dir": "there"},
        ValueError,
        "RunConfig 'here' 'there' one",
    ),
    "warm start": (
        {"warm_start_from": 3},
        ValueError,
        "`warm_start_from` path dict WarmStartSettings 3 int",
    ),
    "embeddings": (
        {"embedding_config_spec": object()},
        ValueError,
        "`embedding_config_spec` kte.experimental.EmbeddingConfigSpec <object Make",
    ),
    "version 3": ({"export_saved_model_api_version": 3}, ValueError, "_version` 1 2 3"),
    "version None": ({"export_saved_model_api_version": None}, ValueError, "1 2 None"),
}


@pytest.mark.parametrize("name", [*REFUSED, *ALSO_REFUSED])
def test_invalid_arguments_are_refused_by_name(name, temporary):
    changes, exception, words = (REFUSED | ALSO_REFUSED)[name]
    with refused(exception, words):
        construct(**changes)
    assert not os.listdir(temporary)


@pytest.mark.parametrize("name", REFUSED)
def test_first_mistake_is_reported(name):
    changes, exception, words = REFUSED[name]
    later = itertools.dropwhile(lambda other: other != name, [*REFUSED, *ALSO_REFUSED])
    for other in later:
        more_changes = (REFUSED | ALSO_REFUSED)[other][0]
        if not changes.keys() & more_changes.keys():
            with refused(exception, words):
                construct(**changes, **more_changes)


@pytest.mark.parametrize("size", [16.0, "16", True, np.float32(16), [16]], ids=repr)
def test_batch_size_of_wrong_type(size, temporary):
    for argument in ("train_batch_size", "eval_batch_size", "predict_batch_size"):
        words = f"`{argument}` int Received {type(size).__name__} all cores"
        with refused(TypeError, words):
            construct(**{argument: size})
    assert not os.listdir(temporary)


@pytest.mark.parametrize("axes", [3, ["a", 0], [0, None], [True], {"x": 1}], ids=repr)
def test_batch_axis_of_wrong_type(axes):
    words = f"`batch_axis` list int {axes} {type(axes).__name__} [1, 0]"
    with refused(TypeError, words):
        construct(model_dir="never made", batch_axis=axes)
    assert not os.path.exists("never made")


def test_overriding_members_is_refused():
    members = "train evaluate predict eval_dir get_variable_names get_variable_value"
    for member in (*members.split(), "model_dir", "config", "params"):
        class_of_user = type("Mine", (kte.TPUEstimator,), {member: lambda s: None})
        with refused(ValueError, f"'{member}' Mine"):
            construct(class_of_user)


def test_members_may_be_added():
    class Mine(kte.TPUEstimator):
        def latest_checkpoint(self):
            return "mine"

        def train_twice(self):
            return 2

        @property
        def model_fn(self):
            return "mine too"

    estimator = construct(Mine, model_dir="anywhere")
    assert estimator.latest_checkpoint() == "mine"
    assert (estimator.train_twice(), estimator.model_fn) == (2, "mine too")


class Callable:
    def __call__(self, features, labels, mode, params, config):
        del features, labels, mode, params, config

    def model_fn(self, features, labels, mode, params):
        del self, features, labels, mode, params


def of_depth(depth, features, labels, mode, params):
    del depth, features, labels, mode, params


def decorated(model_fn):
    @functools.wraps(model_fn)
    def decorator(*args, **kwargs):
        return model_fn(*args, **kwargs)

    return decorator


@pytest.mark.parametrize(
    "changes",
    [
        {"train_batch_size": np.int64(16), "eval_batch_size": np.int32(8)},
        {"eval_batch_size": None, "predict_batch_size": None},
        {"train_batch_size": 3},
        {"use_tpu": False, "train_batch_size": None, "eval_batch_size": 1.5},
        {"tpu_config": PER_CORE_INPUT_OF_SPLIT_MODEL, "use_tpu": False},
        {"model_fn": lambda features: features},
        {"model_fn": lambda features, **others: features},
        {"model_fn": Callable()},
        {"model_fn": Callable().model_fn},
        {"model_fn": functools.partial(of_depth, 3)},
        {"model_fn": functools.partial(of_depth, depth=3)},
        {"model_fn": decorated(functools.partial(of_depth, depth=3))},
        {"model_fn": functools.partial(decorated(of_depth), depth=3)},
        {"params": {"use_tpu": "not reserved"}},
        {"batch_axis": (1, np.int64(-1))},
        {"export_saved_model_api_version": 2},
    ],
)
def test_valid_arguments_are_accepted(changes):
    construct(model_dir="never made", **changes)
    assert not os.path.exists("never made")


@pytest.mark.parametrize("of_config", [None, "there"])
@pytest.mark.parametrize("model_dir", ["there", pathlib.Path("there"), b"there", ""])
def test_model_dir(model_dir, of_config, temporary):
    if not model_dir and not of_config:
        model_dir = "there"
    estimator = construct(model_dir=model_dir, config_dir=of_config)
    expected = os.path.abspath("there")
    assert estimator.model_dir == estimator.config.model_dir == expected
    assert not os.listdir(temporary)


def test_relative_model_dir_does_not_follow_the_working_directory(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    estimator = construct(model_dir="here")
    monkeypatch.chdir("/")
    assert estimator.model_dir == str(tmp_path / "here")
    assert estimator.eval_dir() == str(tmp_path / "here" / "eval")


@pytest.mark.parametrize("given", ["/of/mine/", "memory://bucket/run"])
def test_absolute_model_dir_is_unchanged(given):
    assert construct(model_dir=given).model_dir == given


@pytest.mark.parametrize("changes", [{}, {"model_dir": ""}])
def test_temporary_model_dir(changes, temporary, caplog):
    estimator = construct(**changes)
    assert os.listdir(temporary) == [os.path.basename(estimator.model_dir)]
    assert f"as model_dir: {estimator.model_dir}" in caplog.text


def test_directory_of_tf_config_counts_as_that_of_the_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"model_dir": "there"}))
    with refused(ValueError, "'here' 'there' one"):
        construct(model_dir="here")


def test_properties_are_copies():
    given = {"rates": [0.1, 0.2]}
    estimator = construct(model_dir="here", params=given)
    given["rates"].append(0.3)
    estimator.params["rates"].append(0.4)
    assert estimator.params == {"rates": [0.1, 0.2]}
    assert estimator.config is not estimator.config
    assert estimator.config == estimator.config
    assert isinstance(estimator.config, kte.RunConfig)
    assert estimator.config.log_step_count_steps is None


def test_params_are_empty_by_default():
    assert construct(model_dir="here").params == {}


def test_model_fn_property_has_params_bound():
    def model_fn(features, labels, mode, params, config):
        seen.append((labels, mode, params, config))
        params["rate"] = 0.0
        return kte.EstimatorSpec(mode, predictions={"y": features})

    seen = []
    estimator = construct(model_dir="here", model_fn=model_fn, params={"rate": 0.1})
    features = np.ones(3)
    spec = estimator.model_fn(features, None, "infer", estimator.config)
    assert spec.predictions["y"] is features
    labels, mode, params, config = seen[0]
    assert (labels, mode, config) == (None, "infer", estimator.config)
    assert params.keys() == {"rate", "use_tpu"} and not params["use_tpu"]
    assert estimator.params == {"rate": 0.1}


@pytest.mark.parametrize(
    ("name", "expected"),
    [(None, "eval"), ("", "eval"), ("dev", "eval_dev")],
)
def test_eval_dir(name, expected):
    estimator = construct(model_dir="/here")
    assert estimator.eval_dir(name) == os.path.join("/here", expected)
