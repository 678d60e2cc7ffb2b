"""Tests that layers that assign in `call` train as in Keras."""

import re
from collections import Counter

import keras
import numpy as np
import pytest
from helpers import some_slow
from keras import layers, ops

import keras_tpu_estimator as kte

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(16, 4)).astype("float32")
STEPS_OF_ROWS = RNG.normal(size=(16, 5, 4)).astype("float32")
IMAGES = RNG.random((16, 8, 8, 3), "float32")
LABELS = RNG.normal(size=(16, 2)).astype("float32")


class Codebook(layers.Layer):
    """A vector quantizer whose code words are moving averages."""

    def build(self, shape):
        self.words = self.add_weight(
            shape=(5, shape[-1]), initializer="glorot_uniform", trainable=False
        )
        self.counts = self.add_weight(shape=(5,), initializer="ones", trainable=False)

    def call(self, x, training=False):
        far = ops.sum((x[:, None] - self.words.value) ** 2, -1)
        chosen = ops.one_hot(ops.argmin(far, -1), 5)
        found = chosen @ self.words
        self.add_loss(ops.mean((ops.stop_gradient(found) - x) ** 2))
        if training:
            counts = 0.9 * self.counts + 0.1 * ops.sum(chosen, 0)
            sums = ops.transpose(chosen) @ ops.stop_gradient(x)
            self.words.assign(0.9 * self.words + 0.1 * sums / (counts[:, None] + 1e-3))
            self.counts.assign(counts)
        return x + ops.stop_gradient(found - x)


class Smoothed(layers.Layer):
    """Reads its assigned value, through which the gradient flows."""

    def build(self, shape):
        self.scale = self.add_weight(
            shape=(shape[-1],), initializer="ones", trainable=False
        )

    def call(self, x, training=False):
        if training:
            self.scale.assign(0.5 * self.scale + ops.std(x, 0))
        return x * self.scale


def normalization():
    layer = layers.Normalization()
    layer.adapt(ROWS)
    return layer


LAYERS = {
    "BatchNormalization": (
        lambda: [layers.Dense(4), layers.BatchNormalization()],
        ROWS,
    ),
    "Codebook": (lambda: [layers.Dense(4), Codebook()], ROWS),
    "Smoothed": (lambda: [layers.Dense(4), Smoothed()], ROWS),
    "Dropout": (lambda: [layers.Dense(4), layers.Dropout(0.5, seed=3)], ROWS),
    "GaussianNoise": (lambda: [layers.GaussianNoise(0.5, seed=3)], ROWS),
    "RandomFlip": (lambda: [layers.RandomFlip(seed=3)], IMAGES),
    "RandomRotation": (lambda: [layers.RandomRotation(0.2, seed=3)], IMAGES),
    "RandomContrast": (lambda: [layers.RandomContrast(0.5, seed=3)], IMAGES),
    "Normalization": (lambda: [normalization()], ROWS),
}


def model_of(made, x, rate=0.1):
    """A compiled model of some layers and a head."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input(batch_shape=x.shape),
            *made,
            layers.Flatten(),
            layers.Dense(2, name="head"),
        ]
    )
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "mse")
    return model


def trained(model, x, steps, model_dir):
    """An estimator that has trained several steps from the model's weights."""
    estimator = kte.from_keras(
        model,
        config=kte.RunConfig(model_dir=str(model_dir)),
        use_tpu=False,
        train_batch_size=16,
    )
    batches = [(x, LABELS)] * steps
    return estimator.train(lambda params: iter(batches), max_steps=steps)


@pytest.mark.rows(3)
@pytest.mark.parametrize("steps", some_slow([1, 3], {1}))
@pytest.mark.parametrize(
    "name",
    some_slow(LAYERS, {"GaussianNoise", "RandomFlip", "RandomContrast", "Smoothed"}),
)
def test_steps_match_keras(name, steps, tmp_path):
    made, x = LAYERS[name]
    model = model_of(made(), x)
    estimator = trained(model, x, steps, tmp_path)
    for _ in range(steps):
        model.train_on_batch(x, LABELS)
    names = dict(kte.list_variables(str(tmp_path)))
    seen = Counter()
    for variable in model.variables:
        # Unnamed variables are numbered in their layer; Keras numbers in the process.
        name = re.sub(r"(variable|seed_generator)_[0-9]+", r"\1", variable.path)
        path = f"{name}_{seen[name]}" if seen[name] else name
        seen[name] += 1
        # A checkpoint does not contain the adapted values of a layer.
        assert path in names or path.startswith("normalization")
        if path in names:
            value = estimator.get_variable_value(path)
            np.testing.assert_allclose(value, variable, 1e-5, 1e-6, err_msg=path)


@pytest.mark.parametrize("steps", [1, 3])
def test_spectral_normalization_matches_keras_on_tensorflow(steps, tmp_path):
    """Keras on JAX discards the normalized weights after each step."""
    layer = layers.SpectralNormalization(
        layers.Dense(2, use_bias=False, name="inner"), name="spectral"
    )
    model = keras.Sequential([keras.Input(batch_shape=ROWS.shape), layer])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    kernel, u = map(np.asarray, (layer.kernel, layer.vector_u))
    estimator = trained(model, ROWS, steps, tmp_path)
    for _ in range(steps):
        v = u @ kernel.T
        v /= np.linalg.norm(v)
        u = v @ kernel
        u /= np.linalg.norm(u)
        kernel = kernel / (v @ kernel @ u.T)
        error = ROWS @ kernel - LABELS
        kernel = kernel - 0.1 * ROWS.T @ error * 2 / error.size
    for variable, expected in ((layer.kernel, kernel), (layer.vector_u, u)):
        value = estimator.get_variable_value(variable.path)
        np.testing.assert_allclose(value, expected, 1e-5, 1e-6)


@pytest.mark.parametrize(
    "layer",
    [layers.LSTM, layers.GRU, layers.SimpleRNN],
    ids=lambda c: c.__name__,
)
def test_states_are_updated(layer, tmp_path):
    """Keras's `train_on_batch` on JAX does not update them."""
    recurrent = layer(4, stateful=True, name="recurrent")
    model = model_of([recurrent], STEPS_OF_ROWS, rate=0.0)
    estimator = trained(model, STEPS_OF_ROWS, 3, tmp_path)
    for _ in range(3):
        model(STEPS_OF_ROWS)
    for count, state in enumerate(recurrent.states):
        name = "recurrent/rnn_state" + (f"_{count}" if count else "")
        # Keras 3.16 makes the states in a call of the model.
        (path,) = (n for n in estimator.get_variable_names() if n.endswith(name))
        value = estimator.get_variable_value(path)
        np.testing.assert_allclose(value, state, 1e-5, 1e-6)
