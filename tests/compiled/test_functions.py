"""Tests Keras models whose layers contain Python functions."""

import functools
import threading

import keras
import numpy as np
import pytest
from helpers import batches_of
from keras import layers, ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.upstream import keras_configs
from keras_tpu_estimator.front_ends.compiled import copying

SCALE = 3.0
RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 4)).astype("float32")
Y = X[:, :1] * 2


def scaled(value):
    return ops.multiply(value, SCALE)


def scaling_by(factor):
    def inner(value):
        return value * factor

    return inner


class Scaling:
    """A callable object with a method and without a config."""

    def method(self, value):
        return value * SCALE

    def __call__(self, value):
        return value * SCALE


class Named(layers.Layer):
    """A layer that writes its function into its config."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function

    def call(self, x):
        return self.function(x)

    def get_config(self):
        function = keras.saving.serialize_keras_object(self.function)
        return {**super().get_config(), "function": function}

    @classmethod
    def from_config(cls, config):
        function = config.pop("function")
        return cls(keras.saving.deserialize_keras_object(function), **config)


LAYERS = {
    "lambda": lambda: layers.Lambda(lambda v: v * SCALE, output_shape=(4,)),
    "lambda's shape": lambda: layers.Lambda(
        scaled, output_shape=lambda shape: shape[:1] + (int(SCALE) + 1,)
    ),
    "named": lambda: layers.Lambda(scaled),
    "closure": lambda: layers.Lambda(scaling_by(SCALE)),
    "of keras": lambda: layers.Lambda(ops.tanh),
    "partial": lambda: layers.Lambda(functools.partial(ops.multiply, SCALE)),
    "method": lambda: layers.Lambda(Scaling().method),
    "activation": lambda: layers.Dense(4, lambda v: ops.relu(v) * SCALE),
    "named activation": lambda: layers.Dense(4, scaled),
    "object": lambda: layers.Dense(4, Scaling()),
    "initializer": lambda: layers.Dense(
        4,
        kernel_initializer=lambda shape, dtype=None: ops.ones(shape, dtype) * SCALE,
    ),
    "regularizer": lambda: layers.Dense(
        4, kernel_regularizer=lambda w: 0.01 * SCALE * ops.sum(w**2)
    ),
    "constraint": lambda: layers.Dense(
        4, kernel_constraint=lambda w: ops.clip(w, -SCALE, SCALE)
    ),
    "of a layer with a config": lambda: Named(lambda v: v * SCALE),
    "inside a layer": lambda: layers.TimeDistributed(layers.Dense(4, scaled)),
}


def model_with(layer):
    keras.utils.set_random_seed(0)
    shape = (2, 4) if isinstance(layer, layers.TimeDistributed) else (4,)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8 if len(shape) == 2 else 4),
            layers.Reshape(shape),
            layer,
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.001), "mse")
    return model


@pytest.mark.rows(4)
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_model_with_functions_trains_as_in_keras(make, tmp_path):
    model = model_with(make())
    estimator = kte.from_keras(
        model,
        config=kte.RunConfig(model_dir=str(tmp_path)),
        use_tpu=False,
        train_batch_size=8,
        eval_batch_size=8,
    )
    estimator.train(batches_of(X, Y), steps=2)
    loss = estimator.evaluate(batches_of(X, Y))["loss"]
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    expected = model.evaluate(X, Y, batch_size=8, verbose=0)
    assert loss == pytest.approx(expected, rel=1e-5)


def test_functions_with_equal_names_are_distinguished():
    inputs = keras.Input((4,))
    outputs = layers.Lambda(scaling_by(3.0))(layers.Lambda(scaling_by(5.0))(inputs))
    copy = copying.copied(keras.Model(inputs, outputs))
    np.testing.assert_allclose(copy.predict(X, verbose=0), 15 * X, rtol=1e-6)


def test_configs_on_other_threads_are_unchanged():
    found = []
    layer = layers.Dense(1, scaled)
    with keras_configs.kept_functions() as functions:
        thread = threading.Thread(
            target=lambda: found.append(layer.get_config()["activation"])
        )
        thread.start()
        thread.join()
        assert not functions
    assert found[0] == layer.get_config()["activation"]
    assert "scaled" in found[0]["config"]
