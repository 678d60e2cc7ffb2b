"""Tests random numbers with every generator of JAX."""

import jax
import keras
import numpy as np
import pytest
from helpers import (
    each_once,
    estimator_of,
    model_fn_of,
    regression_data,
    repeated,
    some_slow,
)

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.upstream import keras_random

X, Y = regression_data(size=8)


def network(features, is_training):
    x = keras.layers.Dense(64, "relu")(features)
    x = keras.layers.Dropout(0.5)(x, training=is_training)
    return keras.layers.Dense(1)(x)


def trained(model_dir, steps=8, use_tpu=True, rate=0.01, **config):
    """The variables after several steps."""
    model_fn = model_fn_of(network, lambda: keras.optimizers.SGD(rate))
    estimator = estimator_of(model_fn, model_dir, use_tpu, config=config)
    estimator.train(repeated(X, Y), max_steps=steps)
    return kte.checkpoints.read(estimator.latest_checkpoint())


@pytest.fixture
def jax_default():
    """Sets JAX's own generator, as `jax_default("rbg")`."""
    before = jax.config.values["jax_default_prng_impl"]
    yield lambda name: jax.config.update("jax_default_prng_impl", name)
    jax.config.update("jax_default_prng_impl", before)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)


@pytest.mark.parametrize(
    ("name", "use_tpu"), each_once([*keras_random.GENERATORS], [False, True])
)
def test_restart_continues_bit_for_bit(tmp_path, name, use_tpu):
    settings = {"random_bits": name, "use_tpu": use_tpu}
    whole = trained(tmp_path / "whole", **settings)
    # Four steps are one pass over the data.
    trained(tmp_path / "part", steps=4, **settings)
    assert_same(trained(tmp_path / "part", **settings), whole)


def test_each_generator_draws_different_numbers(tmp_path):
    kernels = {
        name: trained(tmp_path / str(name), 1, random_bits=name)["dense/kernel"]
        for name in (None, "threefry2x32", "rbg")
    }
    np.testing.assert_array_equal(kernels[None], kernels["threefry2x32"])
    assert not np.allclose(kernels[None], kernels["rbg"])


@pytest.mark.parametrize("name", keras_random.BY_DEVICE)
def test_default_generator_of_jax_is_used(tmp_path, jax_default, name):
    expected = trained(tmp_path / "told", random_bits=name)
    jax_default(name)
    assert_same(trained(tmp_path / "default"), expected)


def test_setting_overrides_the_default_of_jax(tmp_path, jax_default):
    expected = trained(tmp_path / "default")
    jax_default("rbg")
    assert_same(trained(tmp_path / "told", random_bits="threefry2x32"), expected)


def test_initial_values_do_not_depend_on_the_device(tmp_path):
    settings = {"random_bits": "rbg", "steps": 1, "rate": 0.0}
    one = trained(tmp_path / "one", use_tpu=False, **settings)
    eight = trained(tmp_path / "eight", **settings)
    assert_same(eight, one)


def test_cores_draw_different_numbers(tmp_path):
    def drawing(features, is_training):
        seen = keras.Variable(keras.ops.zeros(64), trainable=False, name="seen")
        if is_training:
            drawn = keras.random.uniform((64,), seed=keras.random.SeedGenerator())
            seen.assign(drawn)
        return keras.layers.Dense(1)(features)

    estimator = estimator_of(
        model_fn_of(drawing), tmp_path, True, config={"random_bits": "rbg"}
    )
    estimator.train(repeated(X, Y), steps=1)
    # The mean of eight numbers is closer to the center than one number.
    spread = np.std(estimator.get_variable_value("seen"))
    assert spread == pytest.approx((1 / 12 / 8) ** 0.5, rel=0.3)


def test_unknown_generator_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'unsafe_rbg', or None"):
        kte.RunConfig(random_bits="philox")


def test_custom_keys_are_unchanged():
    key = jax.random.key(3, impl="threefry2x32")
    expected = jax.random.normal(key, (4,))
    with keras_random.made_by("rbg"):
        found = keras.random.normal((4,), seed=key)
    np.testing.assert_array_equal(found, expected)


ONES = np.ones((2, 8, 8, 1), "float32")
DRAWS = {
    "beta": lambda seed: keras.random.beta((9,), 2.0, 3.0, seed=seed),
    "binomial": lambda seed: keras.random.binomial((9,), 9, 0.5, seed=seed),
    "categorical": lambda seed: keras.random.categorical(
        np.zeros((1, 99), "float32"), 9, seed=seed
    ),
    "dropout": lambda seed: keras.random.dropout(ONES, 0.5, seed=seed),
    "elastic_transform": lambda seed: keras.ops.image.elastic_transform(
        ONES * np.arange(8, dtype="float32")[:, None], seed=seed
    ),
    "gamma": lambda seed: keras.random.gamma((9,), 2.0, seed=seed),
    "normal": lambda seed: keras.random.normal((9,), seed=seed),
    "randint": lambda seed: keras.random.randint((9,), 0, 99, seed=seed),
    "shuffle": lambda seed: keras.random.shuffle(np.arange(99), seed=seed),
    "truncated_normal": lambda seed: keras.random.truncated_normal((9,), seed=seed),
    "uniform": lambda seed: keras.random.uniform((9,), seed=seed),
}


# Samplers with rejection, of which each run has one.
SELDOM = ("beta", "binomial")


@pytest.mark.rows(3)
@pytest.mark.parametrize("name", some_slow(DRAWS, SELDOM))
def test_all_keras_functions_use_the_generator(name, jax_default):
    threefry = DRAWS[name](3)
    with keras_random.made_by("rbg"):
        rbg = DRAWS[name](3)
    assert not np.array_equal(threefry, rbg)
    jax_default("rbg")
    with keras_random.made_by(None):
        np.testing.assert_array_equal(DRAWS[name](3), rbg)


def test_all_keras_functions_are_tested():
    functions = {n for n in dir(keras.random) if n.islower() and n[0] != "_"}
    assert functions == DRAWS.keys() - {"elastic_transform"}
