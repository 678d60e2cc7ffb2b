"""`group_assignment`: the cores that reduce their gradients together."""

import keras
import numpy as np
import pytest
from helpers import estimator_of
from helpers import regression_data
from helpers import repeated
from keras import ops

import keras_tpu_estimator as kte

X, Y = regression_data()
ALL = list(range(8))


def weights_after(groups, calls, model_dir, use_tpu=True):
    def model_fn(features, labels, mode, params):
        outputs = keras.layers.Dense(1, kernel_initializer="zeros")(features)
        loss = ops.mean((outputs - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(
            keras.optimizers.SGD(0.05), group_assignment=groups
        )
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

    estimator = estimator_of(model_fn, model_dir, use_tpu, batch=64)
    estimator.train(repeated(X, Y), steps=2)
    return estimator.get_variable_value("dense/kernel")


@pytest.mark.parametrize("calls", ["minimize", "apply_gradients"])
def test_one_group_of_all_cores_is_the_default(calls, tmp_path):
    expected = weights_after(None, calls, tmp_path / "default")
    for name, groups in (("sorted", [ALL]), ("mixed", ([*ALL[::-1]],))):
        weights = weights_after(groups, calls, tmp_path / name)
        np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize("groups", [[[0, 1], [2, 3]], [ALL], [[0]]])
def test_groups_on_one_core_change_nothing(groups, tmp_path):
    weights = weights_after(groups, "minimize", tmp_path / "a", use_tpu=False)
    expected = weights_after(None, "minimize", tmp_path / "b", use_tpu=False)
    np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize("calls", ["minimize", "apply_gradients", "by hand"])
def test_several_groups_are_refused_as_variables_would_differ(calls, tmp_path):
    groups = [[0, 2, 4, 6], [1, 3, 5, 7]]
    with pytest.raises(ValueError, match="variables equal on all cores"):
        weights_after(groups, calls, tmp_path)


@pytest.mark.parametrize("groups", [[[0, 1, 2, 3]], [[*ALL, 8, 9]]])
def test_groups_of_other_cores_than_there_are(groups, tmp_path):
    with pytest.raises(ValueError, match="partition the 8 replicas"):
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
        ([[0, 0]], "each replica once"),
        ([[1, 2], [3, 4]], "each replica once"),
    ],
)
def test_malformed_groups_are_refused_at_once(groups, message):
    with pytest.raises(ValueError, match=message):
        kte.CrossShardOptimizer(keras.optimizers.SGD(), group_assignment=groups)
