"""Tests that synchronized batch normalization has the numbers of one device."""

import keras
import numpy as np
import pytest
from helpers import slow
from keras import layers

import keras_tpu_estimator as kte

BATCH = 16
RNG = np.random.default_rng(0)
X = RNG.normal(1, 2, (3 * BATCH, 6, 3)).astype("float32")
X[5:11, 2:] = 0  # Masked steps, more of them on some devices.
Y = X.sum(axis=(1, 2))[:, None]


def model_of(kind):
    keras.utils.set_random_seed(2)
    x = inputs = keras.Input((6, 3), name="x")
    mask = None
    if kind == "masked":
        mask = keras.ops.any(keras.ops.not_equal(inputs, 0), axis=-1)
    if kind == "fused":
        norm = kte.BatchNormalization(name="norm", momentum=0.5, fused=True)
    else:
        norm = layers.BatchNormalization(name="norm", renorm=kind == "renorm")
    x = layers.GlobalAveragePooling1D(name="pool")(
        layers.Dense(4, "tanh", name="h")(norm(x, mask=mask))
    )
    model = keras.Model(inputs, layers.Dense(1, name="y")(x), name="m")
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def trained(kind, directory, use_tpu, is_on=False):
    config = kte.RunConfig(model_dir=str(directory), synchronize_batch_norm=is_on)
    estimator = kte.from_keras(
        model_of(kind), config=config, use_tpu=use_tpu, train_batch_size=BATCH
    )

    def input_fn(params):
        for start in range(0, 3 * BATCH, params["batch_size"]):
            rows = slice(start, start + params["batch_size"])
            yield X[rows], Y[rows]

    estimator.train(input_fn, steps=3)
    names = estimator.get_variable_names()
    return {name: estimator.get_variable_value(name) for name in names}


@pytest.mark.parametrize("kind", ["plain", "masked", "fused", slow("renorm")])
@pytest.mark.parametrize("use_tpu", [True, slow(False)])
def test_numbers_of_one_device(kind, use_tpu, tmp_path):
    expected = trained(kind, tmp_path / "one", use_tpu=False)
    got = trained(kind, tmp_path / "eight", use_tpu, is_on=True)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, 1e-5, 1e-5, err_msg=name)


def test_devices_normalize_separately_by_default(tmp_path):
    expected = trained("plain", tmp_path / "one", use_tpu=False)
    got = trained("plain", tmp_path / "eight", use_tpu=True)
    name = "norm/moving_variance"
    assert not np.allclose(got[name], expected[name], 1e-3)
