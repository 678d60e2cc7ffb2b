"""Tests of the errors in a `model_fn` when it is called."""

import functools

import keras
import numpy as np
import pytest
from helpers import (
    batches_of,
    linear,
    model_fn_of,
    refused,
    regression_data,
)
from keras import ops

import keras_tpu_estimator as kte

X, Y = regression_data(examples=16)
TRAIN, EVAL, PREDICT = "train", "eval", "infer"
SIZES = {"train_batch_size": 16, "eval_batch_size": 16, "predict_batch_size": 16}


def run(estimator, mode, labels=Y):
    """Makes one step in a mode."""
    input_fn = batches_of(X, labels)
    if mode == TRAIN:
        return estimator.train(input_fn, steps=1)
    if mode == EVAL:
        return estimator.evaluate(input_fn)
    return list(estimator.predict(input_fn))


@pytest.fixture
def model_dir(tmp_path):
    """A directory that must be empty at the end."""
    path = tmp_path / "model"
    yield path
    assert not path.exists()


def make(model_fn, model_dir, use_tpu=False, num_shards=None):
    tpu_config = kte.TPUConfig(4, num_shards)
    config = {"tpu_config": tpu_config, "model_dir": str(model_dir)}
    return kte.TPUEstimator(
        model_fn, config=kte.RunConfig(**config), use_tpu=use_tpu, **SIZES
    )


def mean_square(features):
    """A loss without variables."""
    return ops.mean(features**2)


class Hook(kte.hooks.SessionRunHook):
    pass


def without_labels(features, mode):
    raise AssertionError("it should not be called")


def without_params(features, labels, mode):
    raise AssertionError("it should not be called")


# It also lacks `params`, but labels are checked first.
NO_LABELS = "labels Add `labels` features `input_fn`"
NO_PARAMS = "`params` one core params['batch_size'] ['features', 'labels', 'mode']"


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize(
    ("model_fn", "mode", "words"),
    [
        *((without_labels, mode, NO_LABELS) for mode in (TRAIN, EVAL)),
        *((without_params, mode, NO_PARAMS) for mode in (TRAIN, EVAL, PREDICT)),
    ],
)
def test_missing_arguments(model_fn, mode, words, use_tpu, model_dir):
    with refused(ValueError, words):
        run(make(model_fn, model_dir, use_tpu), mode)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_labels_are_not_needed_in_predict(use_tpu, model_dir):
    def model_fn(features, mode, params):
        return kte.TPUEstimatorSpec(mode, predictions={"y": features})

    assert len(run(make(model_fn, model_dir, use_tpu), PREDICT)) == 16


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("mode", [TRAIN, EVAL, PREDICT])
def test_returns_no_spec(mode, use_tpu, model_dir):
    def model_fn(features, labels, params):
        return returned

    for returned in (None, {"loss": 1}, (1, 2)):
        words = f"TPUEstimatorSpec EstimatorSpec {type(returned).__name__}"
        with refused(ValueError, words):
            run(make(model_fn, model_dir, use_tpu), mode)


def spec_of_one_core(features, labels, mode, params):
    return kte.EstimatorSpec(mode, {"y": features}, loss=mean_square(features))


def chief_hooks(features, labels, mode, params):
    loss = mean_square(features)
    return kte.EstimatorSpec(
        mode, loss=loss, train_op=loss, training_chief_hooks=[Hook()]
    )


def nameless(features, labels, mode, params):
    return kte.TPUEstimatorSpec(mode, predictions=features)


ONE_CORE = "use_tpu=True TPUEstimatorSpec EstimatorSpec Return TPUEstimatorSpec("


@pytest.mark.parametrize(
    ("model_fn", "mode", "exception", "words"),
    [
        (spec_of_one_core, EVAL, RuntimeError, f"'eval' {ONE_CORE}"),
        (spec_of_one_core, PREDICT, RuntimeError, f"'infer' {ONE_CORE}"),
        (
            chief_hooks,
            TRAIN,
            ValueError,
            "`training_chief_hooks` use_tpu=True Hook `training_hooks`",
        ),
        (nameless, PREDICT, TypeError, "dict predictions={'output': tensor}"),
    ],
)
def test_specs_on_several_cores(model_fn, mode, exception, words, model_dir):
    with refused(exception, words):
        run(make(model_fn, model_dir, use_tpu=True), mode)


@pytest.mark.parametrize("mode", [EVAL, PREDICT])
def test_estimator_specs_are_accepted_on_one_core(mode, tmp_path):
    def model_fn(features, labels, mode, params):
        return kte.EstimatorSpec(mode, predictions=features, loss=mean_square(features))

    result = run(make(model_fn, tmp_path), mode)
    expected = np.mean(X**2) if mode == EVAL else X
    actual = result["loss"] if mode == EVAL else result
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("field", "mode"),
    [
        ("predictions", PREDICT),
        ("eval_metrics", EVAL),
        ("host_call", EVAL),
        ("host_call", TRAIN),
    ],
)
@pytest.mark.parametrize("num_shards", [1, None])
def test_scalars_cannot_be_concatenated_over_cores(field, mode, model_dir, num_shards):
    def model_fn(features, labels, mode, params):
        scalar = mean_square(linear(features, False))
        tensors = {"row": features, "scalar": scalar}
        fields = {"loss": scalar, "predictions": {"y": features}}
        if field == "predictions":
            fields[field] = tensors
        else:
            fields[field] = (lambda row, scalar: {}, tensors)
        if mode == TRAIN:
            optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD())
            fields["train_op"] = optimizer.minimize(scalar)
        return kte.TPUEstimatorSpec(mode, **fields)

    estimator = make(model_fn, model_dir, True, num_shards)
    with refused(RuntimeError, f"`{field}` first axis scalar ['scalar'] [1]"):
        run(estimator, mode)


def train_op_of_tensor(loss):
    return loss


def train_op_of_own_gradients(loss):
    variables = kte.trainable_variables()
    optimizer = keras.optimizers.SGD()
    optimizer.apply(kte.gradients(loss, variables), variables)
    return optimizer.iterations


@pytest.mark.parametrize(
    ("train_op", "changed"),
    [
        (train_op_of_tensor, "nothing"),
        (train_op_of_own_gradients, "['dense/bias', 'dense/kernel']"),
    ],
)
def test_missing_cross_shard_optimizer(train_op, changed, model_dir):
    def model_fn(features, labels, mode, params):
        loss = mean_square(linear(features, True) - labels)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op(loss))

    words = f"{changed} CrossShardOptimizer(optimizer) reduction='mean' use_tpu=False"
    with refused(ValueError, words):
        run(make(model_fn, model_dir, use_tpu=True), TRAIN)


def test_own_gradients_on_one_core(tmp_path):
    def model_fn(features, labels, mode, params):
        loss = mean_square(linear(features, True) - labels)
        return kte.TPUEstimatorSpec(
            mode, loss=loss, train_op=train_op_of_own_gradients(loss)
        )

    estimator = run(make(model_fn, tmp_path), TRAIN)
    assert np.all(estimator.get_variable_value("dense/kernel"))


def test_specs_are_checked_in_model_fn(model_dir):
    def model_fn(features, labels, mode, params):
        return kte.TPUEstimatorSpec(mode, loss=0.5)

    with pytest.raises(ValueError, match="Missing train_op"):
        run(make(model_fn, model_dir), TRAIN)


class UserError(Exception):
    """An exception that no library handles."""


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("mode", [TRAIN, EVAL, PREDICT])
def test_errors_are_raised_unchanged(mode, use_tpu, model_dir):
    def model_fn(features, labels, mode, params):
        linear(features, False)
        raise error

    for error in (
        ValueError("value"),
        RuntimeError("runtime"),
        TypeError("type"),
        KeyError("key"),
        UserError("mine"),
    ):
        with pytest.raises(type(error)) as raised:
            run(make(model_fn, model_dir, use_tpu), mode)
        assert raised.value is error


def test_error_at_a_second_shape_is_raised_unchanged(tmp_path):
    def model_fn(features, labels, mode, params):
        if len(features) != 16:
            raise UserError(f"{len(features)} examples")
        return model_fn_of(linear)(features, labels, mode, params)

    estimator = make(model_fn, tmp_path)
    with pytest.raises(UserError, match="4 examples"):
        estimator.train(batches_of(np.tile(X, (2, 1))[:20], Y[:1].repeat(20, axis=0)))
    assert estimator.get_variable_value("global_step") == 0
    assert_finished(tmp_path)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_estimator_is_usable_after_an_error(use_tpu, tmp_path):
    fails = [True]

    def model_fn(features, labels, mode, params):
        spec = model_fn_of(linear)(features, labels, mode, params)
        if fails.pop():
            raise UserError
        return spec

    estimator = make(model_fn, tmp_path / "model", use_tpu)
    with pytest.raises(UserError):
        run(estimator, TRAIN)
    fails.append(False)
    run(estimator, TRAIN)
    assert estimator.get_variable_value("global_step") == 1


def assert_finished(model_dir):
    """Checks that a directory contains only finished files."""
    names = {path.name for path in model_dir.iterdir()}
    expected = {"checkpoint", "model.ckpt-0.h5", "run_times.jsonl"}
    rest = {n for n in names if not n.startswith("events.out.tfevents")}
    assert {name for name in rest if ".input." not in name} == expected
    assert sorted(kte.checkpoints.read(model_dir))


def reordered(mode, params, labels, features):
    return kte.TPUEstimatorSpec(mode, predictions={"y": features})


def with_depth(features, labels, mode, params, depth):
    return kte.TPUEstimatorSpec(mode, predictions={"y": depth * features})


@pytest.mark.parametrize(
    "model_fn", [reordered, functools.partial(with_depth, depth=1)]
)
def test_arguments_may_be_reordered_and_bound(model_fn, tmp_path):
    predictions = run(make(model_fn, tmp_path, use_tpu=True), PREDICT)
    np.testing.assert_array_equal([row["y"] for row in predictions], X)
