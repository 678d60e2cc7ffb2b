"""Tests optimizers on one and eight cores, with shared slots, and resumed."""

import functools

import keras
import numpy as np
import pytest
from helpers import estimator_of, model_fn_of, regression_data, repeated, some_slow

import keras_tpu_estimator as kte

X, Y = regression_data(size=8)
MAKE = {
    "adam": lambda: kte.optimizers.AdamWeightDecay(
        0.02, weight_decay_rate=0.1, exclude_from_weight_decay=["bias"]
    ),
    "clipped": lambda: keras.optimizers.Adam(0.02, global_clipnorm=0.5),
    "lamb": lambda: kte.optimizers.LAMB(
        0.02, weight_decay_rate=0.1, exclude_from_weight_decay=["bias"]
    ),
    "lars": lambda: kte.optimizers.LARS(0.1, eeta=0.2, skip_list=["bias"]),
    "sm3": lambda: kte.optimizers.SM3(0.1),
}
SLOTS = {
    "adam": {"m": "momentum", "v": "velocity"},
    "clipped": {"m": "momentum", "v": "velocity"},
    "lamb": {"m": "momentum", "v": "velocity"},
    "lars": {"momentum": "momentum"},
    "sm3": {"accumulator_1": "accumulator_1", "momentum": "momentum"},
}


def network(features, is_training):
    hidden = keras.layers.Dense(16, "tanh", name="hidden")(features)
    return keras.layers.Dense(1, name="out")(hidden)


def model_fn_by(name, optimizers=None):
    """A model_fn that trains with an optimizer, and exposes it and a variable."""

    def model_fn(features, labels, mode, params):
        loss = keras.ops.mean((network(features, True) - labels) ** 2)
        wrapped = kte.CrossShardOptimizer(MAKE[name]())
        if optimizers is not None:
            optimizers[name] = wrapped, kte.trainable_variables()[0]
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=wrapped.minimize(loss))

    return model_fn


def trained(name, model_dir, steps=8, use_tpu=True, optimizers=None, **config):
    """An estimator after several steps with a named optimizer."""
    estimator = estimator_of(
        model_fn_by(name, optimizers), model_dir, use_tpu, config=config
    )
    return estimator.train(repeated(X, Y), max_steps=steps)


def values_of(estimator):
    return {
        path: estimator.get_variable_value(path)
        for path in estimator.get_variable_names()
    }


def assert_equal(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(
            found[path], value, rtol=tolerance, atol=tolerance, err_msg=path
        )


@pytest.fixture(scope="module")
def on_one_core(tmp_path_factory):
    """The values after half of the steps and after all steps."""

    @functools.cache
    def run(name):
        estimator = trained(name, tmp_path_factory.mktemp(name), 4, use_tpu=False)
        half = values_of(estimator)
        # Four steps are one pass over the data.
        return half, values_of(estimator.train(repeated(X, Y), max_steps=8))

    return run


@pytest.fixture(scope="module")
def on_eight_cores(tmp_path_factory):
    """The values, and the `optimizers` of `model_fn_by`."""

    @functools.cache
    def run(name):
        optimizers = {}
        estimator = trained(name, tmp_path_factory.mktemp(name), optimizers=optimizers)
        return values_of(estimator), optimizers[name]

    return run


@pytest.mark.rows(2)
@pytest.mark.parametrize("name", some_slow(MAKE, ["clipped"]))
def test_eight_cores_match_one(name, tmp_path, on_one_core, on_eight_cores):
    half, expected = on_one_core(name)
    moved = expected["out/kernel"] - half["out/kernel"]
    assert np.abs(moved).max() > 1e-3
    eight, _ = on_eight_cores(name)
    shared = trained(name, tmp_path, shard_optimizer=True)
    assert_equal(eight, expected, 2e-5)
    assert_equal(values_of(shared), expected, 2e-5)


@pytest.mark.parametrize("name", ["lamb", "sm3"])
def test_norms_and_rows_are_those_of_complete_variables(name, tmp_path, on_one_core):
    _, expected = on_one_core(name)
    config = kte.RunConfig(
        model_dir=str(tmp_path),
        tpu_config=kte.TPUConfig(4, num_cores_per_replica=4),
        layout_map={"hidden/kernel": (None, "model")},
        shard_optimizer=True,
        tf_random_seed=7,
    )
    split = kte.TPUEstimator(model_fn_by(name), config=config, train_batch_size=16)
    split.train(repeated(X, Y), max_steps=8)
    assert_equal(values_of(split), expected, 2e-5)


@pytest.mark.parametrize("name", MAKE)
def test_resumed_training_equals_uninterrupted_training(name, tmp_path, on_eight_cores):
    whole, _ = on_eight_cores(name)
    trained(name, tmp_path, steps=4)
    resumed = trained(name, tmp_path)
    assert_equal(values_of(resumed), whole, 0)


@pytest.mark.parametrize("name", MAKE)
def test_slots_by_both_names(name, on_eight_cores):
    _, (optimizer, kernel) = on_eight_cores(name)
    for given, own in SLOTS[name].items():
        slot = optimizer.get_slot(kernel, given)
        assert slot.path.endswith(f"/hidden_kernel_{own}")


def test_computed_rate_and_micro_batches(tmp_path):
    def half_of_a_step():
        step = keras.ops.cast(kte.get_global_step(), "float32")
        return kte.optimizers.LAMB(0.04 / (1 + keras.ops.minimum(step, 1.0)))

    def half():
        rates = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.04, 0.02])
        return kte.optimizers.LAMB(rates)

    found = [
        estimator_of(
            model_fn_of(network, make),
            tmp_path / make.__name__,
            True,
            config={"micro_batches": 2},
        ).train(repeated(X, Y), steps=4)
        for make in (half_of_a_step, half)
    ]
    kernels = [each.get_variable_value("out/kernel") for each in found]
    np.testing.assert_allclose(*kernels, rtol=1e-6)
