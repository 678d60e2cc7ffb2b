"""Tests that models of one `from_keras` share only its initial values."""

import threading

import keras
import numpy as np
import pytest
from helpers import batches_of, regression_data, repeated

import keras_tpu_estimator as kte

X, Y = regression_data(32)
BATCH = 8


def compiled():
    keras.utils.set_random_seed(3)
    layers = [keras.Input((3,)), keras.layers.Dense(1, name="y")]
    model = keras.Sequential(layers, name="m")
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


def estimator_of(model, **kwargs):
    sizes = ("train_batch_size", "eval_batch_size", "predict_batch_size")
    return kte.from_keras(model, use_tpu=False, **dict.fromkeys(sizes, BATCH), **kwargs)


def fit(model, **kwargs):
    arguments = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    return model.fit(X, Y, **arguments | kwargs).history


def model_of(estimator):
    return kte.EstimatorModel.from_model_fn(estimator.model_fn)


def test_each_estimator_model_starts_from_the_same_weights():
    estimator = estimator_of(compiled())
    expected = fit(compiled(), epochs=2)
    for _ in range(3):
        history = fit(model_of(estimator), epochs=2)
        assert history == expected


def test_using_a_model_does_not_change_anothers_initial_values():
    estimator = estimator_of(compiled())
    first = estimator.evaluate(batches_of(X, Y))
    model = model_of(estimator)
    fit(model)
    model.set_weights([np.ones_like(each) for each in model.get_weights()])
    assert estimator.evaluate(batches_of(X, Y)) == first
    estimator.train(repeated(X, Y), steps=4)
    assert estimator.evaluate(batches_of(X, Y)) != first
    other = kte.TPUEstimator(
        estimator.model_fn.front_end.keras_model,
        config=kte.RunConfig(),
        use_tpu=False,
        eval_batch_size=BATCH,
    )
    assert other.evaluate(batches_of(X, Y)) == first


def test_callbacks_that_assign_weights_change_one_training():
    class Zeros(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            weights = self.model.get_weights()
            self.model.set_weights([np.zeros_like(each) for each in weights])

    estimator = estimator_of(compiled())
    first = fit(model_of(estimator))
    estimator.train(repeated(X, Y), hooks=[Zeros()], steps=2)
    assert fit(model_of(estimator)) == first


def test_threads_that_train_one_model():
    estimator = estimator_of(compiled())
    expected = fit(compiled(), epochs=3)
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(fit(model_of(estimator), epochs=3))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected, expected]


def test_failed_model_can_be_fitted():
    def model_fn(features, labels, mode, params):
        y = keras.layers.Dense(1, kernel_initializer="zeros")(features)
        loss = keras.ops.mean((y - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.05))
        return kte.TPUEstimatorSpec(mode, {"y": y}, loss, optimizer.minimize(loss))

    model = kte.EstimatorModel.from_model_fn(model_fn)
    for _ in range(2):
        with pytest.raises(ValueError, match="weights of examples"):
            fit(model, sample_weight=np.ones(len(X)))
    fresh = kte.EstimatorModel.from_model_fn(model_fn)
    assert fit(model) == fit(fresh)


def test_user_layers_keep_their_trained_weights():
    outside = keras.layers.Dense(1, name="outside")
    outside.build((None, 3))
    before = outside.kernel.numpy()

    def model_fn(features, labels, mode, params):
        y = outside(features)
        loss = keras.ops.mean((y - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.05))
        return kte.TPUEstimatorSpec(mode, {"y": y}, loss, optimizer.minimize(loss))

    fit(kte.EstimatorModel.from_model_fn(model_fn))
    assert (outside.kernel.numpy() != before).any()
