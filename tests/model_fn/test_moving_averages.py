"""Tests moving averages against TensorFlow's."""

import functools

import keras
import numpy as np
import pytest
from helpers import batches_of, each_once, estimator_of, regression_data

import keras_tpu_estimator as kte

X, Y = regression_data(examples=64)
STEPS = 4


def squared_error(outputs, labels):
    """The mean squared error, or `None` without labels."""
    if labels is None:
        return None
    return keras.ops.mean((outputs - labels) ** 2)


def model_fn(features, labels, mode, params):
    """A linear model with averages of all its variables."""
    normed = keras.layers.BatchNormalization(momentum=0.5, name="norm")(
        features, training=mode == kte.ModeKeys.TRAIN
    )
    outputs = keras.layers.Dense(1, name="dense")(normed)
    loss = squared_error(outputs, labels)
    step = kte.get_global_step() if params["counts"] else None
    averages = kte.ExponentialMovingAverage(params["decay"], step)
    if mode == kte.ModeKeys.TRAIN:
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.05))
        train_op = [optimizer.minimize(loss), averages.apply()]
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def scaffold_fn():
        names = averages.variables_to_restore()  # `scaffold_fn` may also create them.
        return kte.Scaffold(variables_to_restore=names)

    return kte.TPUEstimatorSpec(
        mode, loss=loss, predictions={"y": outputs}, scaffold_fn=scaffold_fn
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An estimator, and the values in its checkpoint of each step."""

    @functools.cache
    def run(use_tpu, counts):
        model_dir = tmp_path_factory.mktemp("averages")
        estimator = estimator_of(
            model_fn,
            model_dir,
            use_tpu,
            iterations=1,
            config={"save_checkpoints_steps": 1},
            params={"counts": counts, "decay": 0.8},
        )
        estimator.train(lambda params: (X[:16], Y[:16]), steps=STEPS)
        return estimator, [
            kte.checkpoints.read(f"{model_dir}/model.ckpt-{step}")
            for step in range(STEPS + 1)
        ]

    return run


@pytest.mark.parametrize(("use_tpu", "counts"), each_once([False, True], [False, True]))
@pytest.mark.parametrize("path", ["dense/kernel", "norm/gamma"])
def test_averages_match_tensorflow(trained, path, counts, use_tpu):
    import tensorflow as tf

    _, steps = trained(use_tpu, counts)
    name = f"{path}/ExponentialMovingAverage"
    np.testing.assert_array_equal(steps[0][name], steps[0][path])
    for number in range(STEPS):
        theirs = tf.train.ExponentialMovingAverage(
            0.8, num_updates=number if counts else None
        )
        variable = tf.Variable(steps[number][name])
        theirs.apply([variable])  # The average starts at the variable's value.
        variable.assign(steps[number + 1][path])
        theirs.apply([variable])
        np.testing.assert_allclose(
            steps[number + 1][name],
            theirs.average(variable),
            rtol=1e-5,
            atol=1e-7,
        )


def test_evaluation_can_use_averages(trained):
    estimator, steps = trained(False, False)
    last = steps[-1]
    normed = (X - last["norm/moving_mean"]) / np.sqrt(
        last["norm/moving_variance"] + 1e-3
    )
    gamma, beta, kernel, bias = (
        last[f"{path}/ExponentialMovingAverage"]
        for path in ("norm/gamma", "norm/beta", "dense/kernel", "dense/bias")
    )
    expected = (normed * gamma + beta) @ kernel + bias
    rows = list(estimator.predict(batches_of(X)))
    np.testing.assert_allclose([r["y"] for r in rows], expected, rtol=1e-4)
    loss = estimator.evaluate(batches_of(X, Y))["loss"]
    np.testing.assert_allclose(loss, np.mean((expected - Y) ** 2), rtol=1e-4)


def test_average_starts_at_its_variables_value(tmp_path):
    """This also holds if the first step assigns the variable."""

    def with_statistics(features, labels, mode, params):
        layer = keras.layers.BatchNormalization(momentum=0.5, name="norm")
        loss = keras.ops.mean(layer(features, training=True) ** 2)
        averages = kte.ExponentialMovingAverage(0.5)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.0))
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=[
                optimizer.minimize(loss),
                averages.apply([layer.moving_mean]),
            ],
        )

    estimator_of(with_statistics, tmp_path, batch=64).train(batches_of(X, Y), steps=1)
    first, last = (
        kte.checkpoints.read(f"{tmp_path}/model.ckpt-{step}") for step in (0, 1)
    )
    name = "norm/moving_mean/ExponentialMovingAverage"
    np.testing.assert_array_equal(first[name], np.zeros(3))
    np.testing.assert_allclose(
        last[name], 0.5 * (0.5 * X.mean(axis=0)), rtol=1e-4, atol=1e-6
    )


def test_layer_statistics_are_averaged_like_global_variables(tmp_path):
    """ResNet and EfficientNet average them, and evaluate with the averages."""
    seen = []

    def with_statistics(features, labels, mode, params):
        training = mode == kte.ModeKeys.TRAIN
        normed = keras.layers.BatchNormalization(momentum=0.5, name="norm")(
            features, training=training
        )
        averages = kte.ExponentialMovingAverage(0.5)
        averaged = [v for v in kte.global_variables() if "moving" in v.path]
        seen.append([v.path for v in averaged])
        loss = keras.ops.mean(normed**2)
        if training:
            optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.0))
            train_op = [optimizer.minimize(loss), averages.apply(averaged)]
            return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

        names = averages.variables_to_restore(averaged)
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            scaffold_fn=lambda: kte.Scaffold(variables_to_restore=names),
        )

    estimator = estimator_of(with_statistics, tmp_path, batch=64)
    estimator.train(batches_of(X, Y), steps=1)
    loss = estimator.evaluate(batches_of(X, Y))["loss"]
    paths = ["norm/moving_mean", "norm/moving_variance"]
    assert [sorted(each) for each in seen] == [paths] * len(seen)
    mean, variance = (
        estimator.get_variable_value(f"{path}/ExponentialMovingAverage")
        for path in paths
    )
    expected = np.mean((X - mean) ** 2 / (variance + 1e-3))
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_keras_averages_can_be_evaluated(tmp_path):
    def with_keras(features, labels, mode, params):
        outputs = keras.layers.Dense(1, use_bias=False, name="dense")(features)
        loss = squared_error(outputs, labels)
        optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
        if mode == kte.ModeKeys.TRAIN:
            train_op = kte.CrossShardOptimizer(optimizer).minimize(loss)
            return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
        names = {
            f"{optimizer.name}/{v.path.replace('/', '_')}_average": v
            for v in kte.trainable_variables()
        }
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            predictions={"y": outputs},
            scaffold_fn=lambda: kte.Scaffold(variables_to_restore=names),
        )

    estimator = estimator_of(with_keras, tmp_path)
    estimator.train(batches_of(X, Y), steps=3)
    kernel, average = (
        estimator.get_variable_value(name)
        for name in ("dense/kernel", "sgd/dense_kernel_average")
    )
    assert not np.allclose(kernel, average)
    rows = list(estimator.predict(batches_of(X)))
    np.testing.assert_allclose([r["y"] for r in rows], X @ average, rtol=1e-5)


@pytest.mark.parametrize("decay", [-0.1, 1.1])
def test_decay_outside_zero_and_one_is_refused(decay):
    with pytest.raises(ValueError, match="`decay` must be .* between 0 and"):
        kte.ExponentialMovingAverage(decay)


def test_averages_outside_a_model_fn_are_refused():
    with pytest.raises(ValueError, match="outside a model_fn"):
        kte.ExponentialMovingAverage(0.9).apply()


def test_averages_of_integers_are_refused(tmp_path):
    def model_fn(features, labels, mode, params):
        seen = keras.Variable([100], dtype="int32", trainable=False, name="n")
        y = keras.layers.Dense(1)(features)
        loss = keras.ops.mean((y - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        average = kte.ExponentialMovingAverage(0.5).apply([seen])
        return kte.TPUEstimatorSpec(
            mode, loss=loss, train_op=[optimizer.minimize(loss), average]
        )

    estimator = estimator_of(model_fn, tmp_path)
    with pytest.raises(TypeError, match="'n' of dtype int32"):
        estimator.train(batches_of(X, Y), steps=1)
