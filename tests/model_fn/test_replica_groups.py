"""Tests `group_assignment`, the cores that reduce their gradients together."""

import functools
import shutil

import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, regression_data, repeated
from keras import ops

import keras_tpu_estimator as kte

X, Y = regression_data()
ALL = list(range(8))


def model_of(groups, calls):
    def model_fn(features, labels, mode, params):
        outputs = keras.layers.Dense(1, kernel_initializer="zeros")(features)
        loss = ops.mean((outputs - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(
            keras.optimizers.SGD(0.05), group_assignment=groups
        )
        if mode == kte.ModeKeys.EVAL:
            return kte.TPUEstimatorSpec(mode, loss=loss)
        if calls == "minimize":
            train_op = optimizer.minimize(loss)
        elif calls == "apply_gradients":
            pairs = optimizer.compute_gradients(loss)
            train_op = optimizer.apply_gradients(pairs)
        else:
            variables = kte.trainable_variables()
            pairs = zip(kte.gradients(loss, variables), variables, strict=True)
            train_op = optimizer.apply_gradients(pairs)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def weights_after(groups, calls, model_dir, use_tpu=True):
    model_fn = model_of(groups, calls)
    estimator = estimator_of(model_fn, model_dir, use_tpu, batch=64)
    estimator.train(repeated(X, Y), steps=2)
    return estimator.get_variable_value("dense/kernel")


@pytest.fixture(scope="module")
def by_default(tmp_path_factory):
    """The weights without groups."""

    @functools.cache
    def run(calls, use_tpu=True):
        path = tmp_path_factory.mktemp("default")
        return weights_after(None, calls, path, use_tpu)

    return run


@pytest.mark.parametrize("calls", ["minimize", "apply_gradients"])
def test_one_group_of_all_cores_is_the_default(calls, tmp_path, by_default):
    expected = by_default(calls)
    for name, groups in (("sorted", [ALL]), ("mixed", ([*ALL[::-1]],))):
        weights = weights_after(groups, calls, tmp_path / name)
        np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize("groups", [[[0, 1], [2, 3]], [ALL], [[0]]])
def test_groups_on_one_core_have_no_effect(groups, tmp_path, by_default):
    weights = weights_after(groups, "minimize", tmp_path, use_tpu=False)
    expected = by_default("minimize", use_tpu=False)
    np.testing.assert_array_equal(weights, expected)


GROUPS = [[0, 2, 4, 6], [1, 3, 5, 7]]


def of_first_group(x):
    """The examples of 64 that cores 0, 2, 4 and 6 receive."""
    return x.reshape(8, 8, -1)[::2].reshape(32, -1)


@pytest.mark.parametrize("calls", ["minimize", "apply_gradients"])
def test_first_group_trains_its_own_model(calls, tmp_path, by_default):
    weights = weights_after(GROUPS, calls, tmp_path / "groups")
    x, y = of_first_group(X[:64]), of_first_group(Y[:64])
    estimator = estimator_of(
        model_of(None, calls), tmp_path / "alone", use_tpu=False, batch=32
    )
    estimator.train(repeated(x, y), steps=2)
    alone = estimator.get_variable_value("dense/kernel")
    np.testing.assert_allclose(weights, alone, rtol=1e-6)
    assert np.abs(weights - by_default(calls)).max() > 1e-3


def test_manual_sums_of_gradients_are_those_of_a_group(tmp_path):
    groups = [[core] for core in ALL]
    weights = weights_after(groups, "by hand", tmp_path / "groups")
    x, y = X[:8], Y[:8]
    estimator = estimator_of(
        model_of(None, "by hand"), tmp_path / "alone", use_tpu=False, batch=8
    )
    estimator.train(repeated(x, y), steps=2)
    alone = estimator.get_variable_value("dense/kernel")
    np.testing.assert_allclose(weights, alone, rtol=1e-6)


def test_later_calls_use_the_model_of_the_first_group(tmp_path):
    model_fn, inside = model_of(GROUPS, "minimize"), []

    class Evaluating(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            session, input_fn = run_context.session, batches_of(X, Y)
            inside.append(session.evaluate(estimator, input_fn))

    estimator = estimator_of(model_fn, tmp_path, batch=64, use_tpu=True)
    estimator.train(repeated(X, Y), hooks=[Evaluating()], steps=2)
    after = estimator.evaluate(batches_of(X, Y))
    assert inside[-1] == after
    shutil.copytree(tmp_path, copy := tmp_path / "copy")
    fresh = estimator_of(model_fn, copy, batch=64, use_tpu=True)
    assert fresh.evaluate(batches_of(X, Y)) == after
    for each in (estimator, fresh):
        each.train(repeated(X, Y), steps=1)
    for name in estimator.get_variable_names():
        np.testing.assert_array_equal(
            estimator.get_variable_value(name), fresh.get_variable_value(name)
        )


def test_groups_need_batches_divisible_by_the_cores(tmp_path):
    estimator = estimator_of(
        model_of(GROUPS, "minimize"), tmp_path, use_tpu=True, batch=64
    )
    with pytest.raises(ValueError, match="divisible by the 8 cores.*12 ex"):
        estimator.train(batches_of(X[:12], Y[:12]), steps=1)


@pytest.mark.parametrize("groups", [[[0, 1, 2, 3]], [[*ALL, 8, 9]]])
def test_groups_of_missing_cores_are_refused(groups, tmp_path):
    with pytest.raises(ValueError, match="must contain all 8 replicas"):
        weights_after(groups, "minimize", tmp_path)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (8, "list of lists"),
        ([], "list of lists"),
        ([0, 1], "list of lists"),
        ([[0, "1"]], "list of lists"),
        ([[0], []], "list of lists"),
        ([[0, 1], [2]], "of one size"),
        ([[0, 0]], "each of them once"),
        ([[1, 2], [3, 4]], "each of them once"),
    ],
)
def test_constructor_refuses_malformed_groups(groups, message):
    with pytest.raises(ValueError, match=message):
        kte.CrossShardOptimizer(keras.optimizers.SGD(), group_assignment=groups)
