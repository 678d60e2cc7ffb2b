"""Tests of the errors of `TPUEstimator(...)`, of their order, and of its state."""

import functools
import itertools
import json
import os
import pathlib
import tempfile

import numpy as np
import pytest
from helpers import linear, model_fn_of

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


# By name: the wrong arguments, the exception and its message, in the order of the
# checks. Cases with one number test the same check.
REFUSED = {
    "1 no config": (
        {"config": None},
        ValueError,
        r"must be a keras_tpu_estimator\.RunConfig\. Received: None.*"
        r"config=RunConfig\(model_dir=",
    ),
    "1 config of another type": (
        {"config": {"model_dir": "x"}},
        ValueError,
        r"must be a keras_tpu_estimator\.RunConfig\. Received: .* of type dict",
    ),
    "2 params that are a number": (
        {"params": 3},
        TypeError,
        "`params` must be a dict of hyperparameters. Received: 3 of type "
        "int. Pass something like params={'learning_rate'",
    ),
    "2 params that are a list": (
        {"params": ["rate"]},
        TypeError,
        r"`params` must be a dict .* Received: \['rate'\] of type list",
    ),
    "2 batch_size in params": (
        {"params": {"rate": 0.1, "batch_size": 8}},
        ValueError,
        r"may not have the key 'batch_size'.*\['batch_size', 'context'\]\. "
        "Rename yours",
    ),
    "2 context in params": (
        {"params": {"context": None}},
        ValueError,
        "may not have the key 'context'.*Rename yours",
    ),
    "3 no train_batch_size": (
        {"train_batch_size": None},
        ValueError,
        "`train_batch_size` cannot be None with use_tpu=True. Received: None. "
        "Pass the number of examples in a step over all cores, such as "
        "`train_batch_size=64`, or `use_tpu=False`",
    ),
    "5 train_batch_size of zero": (
        {"train_batch_size": 0},
        ValueError,
        "`train_batch_size` must be positive. Received: 0. Pass the number",
    ),
    "6 input per core of a split model": (
        {"tpu_config": PER_CORE_INPUT_OF_SPLIT_MODEL},
        ValueError,
        "Model parallelism needs input for each host. Received: .*PER_SHARD_V1 "
        "with num_cores_per_replica=2. Use PER_HOST_V1 or PER_HOST_V2",
    ),
    "7 negative eval_batch_size": (
        {"eval_batch_size": -8},
        ValueError,
        "`eval_batch_size` must be positive. Received: -8. Pass the number",
    ),
    "8 negative predict_batch_size": (
        {"predict_batch_size": -1},
        ValueError,
        "`predict_batch_size` must be positive. Received: -1. Pass the number",
    ),
    "11 no model_fn": (
        {"model_fn": None},
        TypeError,
        "`model_fn` must be callable. Received: None of type NoneType",
    ),
    "11 model_fn without features": (
        {"model_fn": without_features},
        ValueError,
        "must take an argument `features`. Received a function of "
        r"\['labels', 'mode', 'params'\]",
    ),
    "12 model_fn without params": (
        {"model_fn": without_params, "params": {}},
        ValueError,
        r"must take an argument `params`, .* a function of \['features', "
        r"'labels', 'mode'\]. Add the argument",
    ),
    "14 model_fn with more arguments": (
        {"model_fn": with_more},
        ValueError,
        "must be among features, labels, mode, params and config. Received "
        r"others: \['depth', 'width'\]. Pass their values in `params`",
    ),
    "15 a method is overridden": (
        {"estimator_class": Overriding},
        ValueError,
        "cannot override 'train'. Received: Overriding. Rename the method",
    ),
}
# These are last; their order does not matter.
ALSO_REFUSED = {
    "a number as model_dir": (
        {"model_dir": 3},
        TypeError,
        "`model_dir` must be a path. Received: 3 of type int. Pass a string",
    ),
    "zero as model_dir": (
        {"model_dir": 0},
        TypeError,
        "`model_dir` must be a path. Received: 0 of type int",
    ),
    "two directories": (
        {"model_dir": "here", "config_dir": "there"},
        ValueError,
        "the same in the constructor and in RunConfig. Received: 'here' "
        "and 'there'. Set one of them",
    ),
    "warm start": (
        {"warm_start_from": 3},
        ValueError,
        "`warm_start_from` must be the path of a checkpoint, a dict of "
        "arrays, or a WarmStartSettings. Received: 3 of type int",
    ),
    "embeddings": (
        {"embedding_config_spec": object()},
        ValueError,
        "`embedding_config_spec` must be a "
        "kte.experimental.EmbeddingConfigSpec. Received: <object.*Make one of",
    ),
    "version 3 of exports": (
        {"export_saved_model_api_version": 3},
        ValueError,
        "`export_saved_model_api_version` must be 1 or 2. Received: 3",
    ),
    "no version of exports": (
        {"export_saved_model_api_version": None},
        ValueError,
        "must be 1 or 2. Received: None",
    ),
}


@pytest.mark.parametrize("name", [*REFUSED, *ALSO_REFUSED])
def test_invalid_arguments_are_refused_by_name(name, temporary):
    changes, exception, message = (REFUSED | ALSO_REFUSED)[name]
    with pytest.raises(exception, match=message):
        construct(**changes)
    assert not os.listdir(temporary)


@pytest.mark.parametrize("name", REFUSED)
def test_first_mistake_is_reported(name):
    changes, exception, message = REFUSED[name]
    later = itertools.dropwhile(lambda other: other != name, [*REFUSED, *ALSO_REFUSED])
    for other in later:
        more_changes = (REFUSED | ALSO_REFUSED)[other][0]
        if not changes.keys() & more_changes.keys():
            with pytest.raises(exception, match=message):
                construct(**changes, **more_changes)


@pytest.mark.parametrize(
    "argument", ["train_batch_size", "eval_batch_size", "predict_batch_size"]
)
@pytest.mark.parametrize("size", [16.0, "16", True, np.float32(16), [16]], ids=repr)
def test_batch_size_of_wrong_type(argument, size, temporary):
    message = (
        f"`{argument}` must be an int. Received: .* of type "
        f"{type(size).__name__}. Pass the number of examples over all cores"
    )
    with pytest.raises(TypeError, match=message):
        construct(**{argument: size})
    assert not os.listdir(temporary)


@pytest.mark.parametrize(
    ("axes", "received"),
    [
        (3, "3 of type int"),
        (["a", 0], r"\['a', 0\] of type list"),
        ([0, None], r"\[0, None\] of type list"),
        ([True], r"\[True\] of type list"),
        ({"x": 1}, "{'x': 1} of type dict"),
    ],
    ids=repr,
)
def test_batch_axis_of_wrong_type(axes, received):
    message = (
        "`batch_axis` must be a list with one int for each tensor of "
        rf"features and labels. Received: {received}. Pass .* \[1, 0\]"
    )
    with pytest.raises(TypeError, match=message):
        construct(model_dir="never made", batch_axis=axes)
    assert not os.path.exists("never made")


@pytest.mark.parametrize(
    "member",
    [
        "train",
        "evaluate",
        "predict",
        "eval_dir",
        "get_variable_names",
        "get_variable_value",
        "model_dir",
        "config",
        "params",
    ],
)
def test_overriding_members_is_refused(member):
    class_of_user = type("Mine", (kte.TPUEstimator,), {member: lambda s: None})
    with pytest.raises(ValueError, match=f"cannot override '{member}'.*Mine"):
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


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_dir": "here"}, "here"),
        ({"model_dir": pathlib.Path("here")}, "here"),
        ({"model_dir": b"here"}, "here"),
        ({"config_dir": "there", "model_dir": b"there"}, "there"),
        ({"config_dir": "there"}, "there"),
        ({"config_dir": "there", "model_dir": "there"}, "there"),
        ({"config_dir": "there", "model_dir": pathlib.Path("there")}, "there"),
        ({"config_dir": "there", "model_dir": ""}, "there"),
    ],
)
def test_model_dir(changes, expected, temporary):
    estimator = construct(**changes)
    expected = os.path.abspath(expected)
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
    with pytest.raises(ValueError, match="'here' and 'there'. Set one"):
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
