"""Tests that updates of trained variables are equal on all cores."""

import jax
import keras
import numpy as np
import pytest
from helpers import estimator_of, regression_data, repeated
from keras import ops

import keras_tpu_estimator as kte

X, Y = regression_data()
RATE = 0.1


def kernel_after(train_op_of, model_dir, use_tpu=True, **config):
    """The weights after a step with all examples, from zero."""

    def model_fn(features, labels, mode, params):
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        loss = ops.mean((layer(features) - labels) ** 2)
        train_op = train_op_of(loss, layer.kernel)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = estimator_of(model_fn, model_dir, use_tpu, batch=64, config=config)
    estimator.train(repeated(X, Y), steps=1)
    return estimator.get_variable_value("dense/kernel")


EXPECTED = RATE * 2 * X.T @ Y / len(X)


def sgd():
    return keras.optimizers.SGD(RATE)


def gradient_of(loss, kernel):
    return kte.gradients(loss, [kernel])[0]


def minimizing(loss, kernel):
    return kte.TrainOp(sgd(), (kernel,), loss=loss)


def local(loss, kernel):
    return kte.TrainOp(sgd(), (kernel,), gradients=(gradient_of(loss, kernel),))


def local_after_another_reduction(loss, kernel):
    kte.cross_replica_mean(loss)
    return local(loss, kernel)


def scaled_by_a_reduced_norm(loss, kernel):
    gradient = gradient_of(loss, kernel)
    norm = kte.cross_replica_mean(ops.norm(gradient))
    return kte.TrainOp(sgd(), (kernel,), gradients=(gradient / norm,))


def reduced_in_groups(loss, kernel):
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    gradient = jax.lax.psum(
        gradient_of(loss, kernel), "batch", axis_index_groups=groups
    )
    return kte.TrainOp(sgd(), (kernel,), gradients=(gradient,))


def of_keras(loss, kernel):
    return sgd().apply_gradients([(gradient_of(loss, kernel), kernel)])


def of_keras_after_another_reduction(loss, kernel):
    kte.cross_replica_mean(loss)
    return of_keras(loss, kernel)


def beside_one_of_cross_shard_optimizer(loss, kernel):
    other = keras.Variable(1.0, name="other")
    wrapped = kte.CrossShardOptimizer(sgd())
    own = of_keras(loss, kernel)
    return [wrapped.minimize(loss * other, var_list=[other]), own]


@pytest.mark.parametrize(
    "train_op_of",
    [
        minimizing,
        local,
        local_after_another_reduction,
        scaled_by_a_reduced_norm,
        reduced_in_groups,
        of_keras,
        of_keras_after_another_reduction,
        beside_one_of_cross_shard_optimizer,
    ],
)
def test_unreduced_gradients_are_refused(train_op_of, tmp_path):
    with pytest.raises(ValueError, match="wrap the optimizer") as info:
        kernel_after(train_op_of, tmp_path)
    assert "'dense/kernel'" in str(info.value)


@pytest.mark.parametrize(
    "train_op_of", [minimizing, local, local_after_another_reduction, of_keras]
)
def test_one_core_needs_no_reduction(train_op_of, tmp_path):
    kernel = kernel_after(train_op_of, tmp_path, use_tpu=False)
    np.testing.assert_allclose(kernel, EXPECTED, rtol=1e-4)


def reduced(loss, kernel):
    gradient = kte.cross_replica_mean(gradient_of(loss, kernel))
    return kte.TrainOp(sgd(), (kernel,), gradients=(gradient,))


def reduced_by_jax(loss, kernel):
    gradient = jax.lax.pmean(gradient_of(loss, kernel), "batch")
    return kte.TrainOp(sgd(), (kernel,), gradients=(gradient,))


def reduced_inside_jit(loss, kernel):
    mean = jax.jit(kte.cross_replica_mean)
    gradient = mean(gradient_of(loss, kernel))
    return kte.TrainOp(sgd(), (kernel,), gradients=(gradient,))


def reduced_and_applied_by_keras(loss, kernel):
    gradient = kte.cross_replica_mean(gradient_of(loss, kernel))
    return sgd().apply_gradients([(gradient, kernel)])


def with_reduction(loss, kernel):
    return kte.TrainOp(sgd(), (kernel,), loss=loss, reduction="mean")


def assigned_by_hand(loss, kernel):
    gradient = kte.cross_replica_mean(gradient_of(loss, kernel))
    return kernel.assign_sub(RATE * gradient)


REDUCED = [
    reduced,
    reduced_by_jax,
    reduced_inside_jit,
    reduced_and_applied_by_keras,
    with_reduction,
    assigned_by_hand,
]


@pytest.mark.rows(4)
@pytest.mark.parametrize("train_op_of", REDUCED)
def test_gradients_may_be_reduced_in_any_way(train_op_of, tmp_path):
    kernel = kernel_after(train_op_of, tmp_path)
    np.testing.assert_allclose(kernel, EXPECTED, rtol=1e-4)


@pytest.mark.parametrize("remat", ["full", "activations"])
def test_reduced_gradients_of_a_rematerialized_model(remat, tmp_path):
    kernel = kernel_after(reduced, tmp_path, remat=remat)
    np.testing.assert_allclose(kernel, EXPECTED, rtol=1e-4)


def changing_statistics_only(loss, kernel):
    seen = keras.Variable(0.0, trainable=False, name="seen")
    return seen.assign(loss)


def test_train_op_may_only_collect_statistics(tmp_path):
    kernel = kernel_after(changing_statistics_only, tmp_path)
    np.testing.assert_array_equal(kernel, np.zeros_like(kernel))
    assert seen_in(tmp_path) == pytest.approx(np.mean(Y**2), rel=1e-5)


def drawing_random_numbers(loss, kernel):
    generator = keras.random.SeedGenerator(1)
    return loss * keras.random.uniform((), seed=generator)


@pytest.mark.parametrize(
    "train_op_of", [lambda loss, kernel: loss, drawing_random_numbers]
)
def test_train_op_without_updates_is_refused(train_op_of, tmp_path):
    with pytest.raises(ValueError, match="changes nothing"):
        kernel_after(train_op_of, tmp_path)


def test_average_with_different_decays_is_refused(tmp_path):
    def train_op_of(loss, kernel):
        wrapped = kte.CrossShardOptimizer(sgd())
        averages = kte.ExponentialMovingAverage(0.9, num_updates=loss)
        return [wrapped.minimize(loss), averages.apply()]

    with pytest.raises(ValueError, match="combined over them"):
        kernel_after(train_op_of, tmp_path)


def test_different_statistics_are_averaged(tmp_path):
    def train_op_of(loss, kernel):
        changing_statistics_only(loss, kernel)
        return kte.CrossShardOptimizer(sgd()).minimize(loss)

    kernel = kernel_after(train_op_of, tmp_path)
    np.testing.assert_allclose(kernel, EXPECTED, rtol=1e-4)
    assert seen_in(tmp_path) == pytest.approx(np.mean(Y**2), rel=1e-5)


def seen_in(model_dir):
    values = kte.checkpoints.read(kte.latest_checkpoint(str(model_dir)))
    return float(values["seen"])
