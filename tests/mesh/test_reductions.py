"""Tests sums and means over cores for every dtype."""

import jax
import keras
import numpy as np
import pytest
from helpers import estimator_of, linear, model_fn_of, regression_data, repeated

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.mesh.all_cores import all_cores

X, Y = regression_data()


def on_cores(function, x, per_replica):
    """Applies a function to each core's elements of an array."""
    cores = all_cores(per_replica=per_replica)
    per_core = cores.per_core(lambda x: function(cores, x[0]), (True,), False)
    return jax.jit(per_core)(x)


@pytest.mark.parametrize("per_replica", [1, 2])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_means_do_not_overflow(dtype, per_replica):
    x = np.full(8 // per_replica, 40_000).astype(dtype)
    mean = on_cores(lambda cores, x: cores.mean(x), x, per_replica)
    assert mean.dtype == x.dtype
    assert float(mean) == float(x[0])


@pytest.mark.parametrize("per_replica", [1, 2])
@pytest.mark.parametrize("dtype", ["int8", "uint32", "bfloat16", "float32"])
def test_sums_have_the_dtype_of_their_terms(dtype, per_replica):
    x = np.arange(8 // per_replica).astype(dtype)
    total = on_cores(lambda cores, x: cores.sum(x), x, per_replica)
    assert total.dtype == x.dtype
    assert float(total) == sum(range(len(x)))


def test_mean_of_integers_is_a_float():
    x = np.array([1, 2] * 4, "int32")
    assert float(on_cores(lambda cores, x: cores.mean(x), x, 1)) == 1.5


def test_model_fn_sums_and_averages_half_precision(tmp_path):
    def network(x, is_training):
        big = keras.ops.full((), 40_000, "float16")
        if is_training:
            seen.assign(kte.cross_replica_mean(big))
        return linear(x, is_training)

    seen = keras.Variable(0.0, trainable=False, dtype="float16", name="seen")
    estimator = estimator_of(model_fn_of(network), tmp_path, use_tpu=True)
    estimator.train(repeated(X, Y), steps=1)
    assert estimator.get_variable_value("seen") == 40_000


def test_bfloat16_layer_trains_on_replicas_of_two_cores(tmp_path):
    def network(x, is_training):
        return keras.layers.Dense(1, kernel_initializer="zeros", dtype="bfloat16")(x)

    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(num_cores_per_replica=2),
        model_dir=str(tmp_path),
    )
    estimator = kte.TPUEstimator(
        model_fn_of(network), config=config, train_batch_size=16
    )
    estimator.train(repeated(X, Y.astype("bfloat16")), steps=40)
    kernel = estimator.get_variable_value("dense/kernel")
    assert kernel.dtype == "bfloat16"
    np.testing.assert_allclose(kernel[:, 0].astype(float), [1, 2, 3], atol=0.5)
