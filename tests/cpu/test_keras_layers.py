"""Tests Keras layers that train on a CPU with and without rewriting."""

import jax
import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, model_fn_of, repeated, slow
from keras import layers

import keras_tpu_estimator as kte
from keras_tpu_estimator import ModeKeys
from keras_tpu_estimator.base.cpu import tuning
from keras_tpu_estimator.base.mesh.all_cores import all_cores
from keras_tpu_estimator.base.mesh.cores import ONE_CORE
from keras_tpu_estimator.typing import Cores


def small(*shape):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, *shape)).astype("float32")
    return x, x.reshape(16, -1)[:, :1].copy()


def head(x):
    return layers.Dense(1)(layers.Flatten()(x))


def one_axis(x, is_training):
    x = layers.Conv1D(4, 3, padding="causal", activation="relu")(x)
    x = layers.MaxPooling1D(2)(x)
    x = layers.SeparableConv1D(5, 3, padding="same")(x)
    return head(layers.AveragePooling1D(3, 2, padding="same")(x))


def two_axes(x, is_training):
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x, training=is_training)
    x = layers.MaxPooling2D(3, 2, padding="same")(layers.ReLU()(x))
    x = layers.Conv2D(4, 3, groups=2, dilation_rate=2, padding="same")(x)
    return head(layers.AveragePooling2D(2)(x))


def depthwise(x, is_training):
    # A bias before a norm has only rounding errors as gradients.
    x = layers.DepthwiseConv2D(
        3, 2, depth_multiplier=2, padding="same", use_bias=False
    )(x)
    x = layers.BatchNormalization()(x, training=is_training)
    x = layers.SeparableConv2D(4, 3, padding="same", activation="relu")(x)
    return head(layers.GlobalAveragePooling2D()(x))


def transposed(x, is_training):
    x = layers.Conv2D(4, 3, 2, padding="same", activation="relu")(x)
    x = layers.Conv2DTranspose(3, 3, 2, padding="same")(x)
    return head(layers.GlobalMaxPooling2D()(x))


def three_axes(x, is_training):
    x = layers.Conv3D(4, 2, activation="relu")(x)
    x = layers.MaxPooling3D(2, padding="same")(x)
    return head(layers.Conv3DTranspose(2, 2)(x))


def in_a_loop(x, is_training):
    return head(layers.ConvLSTM1D(2, 3, padding="same")(x))


NETWORKS = {
    one_axis: (12, 3),
    two_axes: (8, 8, 3),
    depthwise: (8, 8, 3),
    transposed: (6, 6, 2),
    three_axes: (4, 4, 4, 2),
    in_a_loop: (3, 6, 2),
}


def as_it_is(function):
    return function


def model_fn_for(network):
    return model_fn_of(network, lambda: keras.optimizers.SGD(0.01, 0.9))


def values_of(store):
    """Initial values, with kernels from NumPy, which compiles nothing."""
    rng = np.random.default_rng(0)
    kernels = {
        path: rng.normal(0, 0.3, variable.shape).astype("float32")
        for path, variable in store.variables.items()
        if len(variable.shape) > 1
    }
    return store.initial_values(store.variables.keys() - kernels) | kernels


def modes_of(network, cores=ONE_CORE, **config):
    """The results of two steps, an evaluation and predictions.

    Returns:
        The results of the compiled CPU version and of the traced functions.
    """
    x, y = small(*NETWORKS[network])
    is_padding = np.zeros(len(x), bool)
    model = kte.EstimatorModel.from_model_fn(
        model_fn_for(network), None, kte.RunConfig(**config), cores, seed=1
    )
    steps = [
        model.prepare(ModeKeys.TRAIN, x, y),
        model.prepare(ModeKeys.EVAL, x, y),
        model.prepare(ModeKeys.PREDICT, x, is_padding),
    ]

    def run(functions, values):
        train, evaluate, predict = functions

        def one(values, _):
            changed, outputs = train(values, x, y)
            return values | changed, outputs["loss"]

        values, losses = jax.lax.scan(one, values, length=2)
        evaluated = evaluate(values, x, y)[1]["loss"]
        predicted = predict(values, x, is_padding)[1]["predictions"]["y"]
        return values, losses, evaluated, predicted

    @jax.jit
    def both(values):
        compiled = run(map(model.program.to_compile, steps), values)
        return compiled, run((step.function for step in steps), values)

    return both(values_of(model.program.store))


@pytest.mark.rows(2)
@pytest.mark.parametrize("network", NETWORKS, ids=lambda each: each.__name__)
def test_steps_have_the_same_results(network):
    compare(*modes_of(network))


@pytest.mark.parametrize("network", [slow(two_axes), depthwise])
def test_shards_have_the_same_results(network):
    compare(*modes_of(network, all_cores()))


@pytest.mark.parametrize(
    "config",
    [
        slow({"micro_batches": 2}),
        slow({"remat": "full"}),
        {"remat": "activations"},
    ],
    ids=str,
)
def test_options_have_the_same_results(config):
    compare(*modes_of(two_axes, **config))


@pytest.mark.slow
def test_mixed_precision_trains_nearly_the_same():
    compare(*modes_of(two_axes, dtype_policy="mixed_bfloat16"), rtol=0.05)


def test_estimators_have_the_same_results(tmp_path, monkeypatch):
    x, y = small(*NETWORKS[two_axes])

    def trained(model_dir):
        estimator = estimator_of(model_fn_for(two_axes), model_dir, seed=1)
        estimator.train(repeated(x, y), steps=3)
        predicted = estimator.predict(batches_of(x))
        return (
            kte.checkpoints.read(estimator.latest_checkpoint()),
            estimator.evaluate(batches_of(x, y)),
            np.stack([each["y"] for each in predicted]),
        )

    found = trained(tmp_path / "tuned")
    monkeypatch.setattr(tuning, "tuned", as_it_is)
    expected = trained(tmp_path / "plain")
    assert found[0].keys() == expected[0].keys()
    compare(found, expected)


def test_keras_loops_have_the_same_results(monkeypatch):
    def fitted():
        model = kte.EstimatorModel.from_model_fn(model_fn_for(two_axes), seed=1)
        x, y = small(*NETWORKS[two_axes])
        history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        loss = model.evaluate(x, y, batch_size=8, verbose=0)
        predicted = model.predict(x, batch_size=8, verbose=0)
        return history.history, loss, predicted, model.get_weights()

    found = fitted()
    monkeypatch.setattr(tuning, "tuned", as_it_is)
    compare(found, fitted())


def test_only_steps_for_a_cpu_are_rewritten(monkeypatch):
    model = kte.EstimatorModel.from_model_fn(model_fn_for(two_axes))
    step = model.prepare(ModeKeys.TRAIN, *small(*NETWORKS[two_axes]))
    assert model.program.to_compile(step) is not step.function
    monkeypatch.setattr(Cores, "platform", "tpu")
    assert model.program.to_compile(step) is step.function


def compare(found, expected, rtol=1e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            a, b, rtol=rtol, atol=rtol * np.abs(b).max()
        ),
        found,
        expected,
    )
