"""Tests Keras layers of JAX functions and flax modules."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, model_fn_of, regression_data, repeated

X, Y = regression_data()


def jax_layer(**settings):
    """A linear layer with a count of its calls, and Python numbers."""

    def call(params, state, inputs, training):
        outputs = inputs @ params["w"] + params["more"][0]
        return outputs, {"calls": state["calls"] + training}

    def init(rng, inputs):
        w = jax.random.normal(rng, (inputs.shape[-1], 1))
        return {"w": w, "more": [0.0]}, {"calls": jnp.int32(0)}

    return keras.layers.JaxLayer(call, init, **settings)


def trained(network, model_dir, **settings):
    estimator = estimator_of(model_fn_of(network), model_dir, **settings)
    estimator.train(repeated(X, Y), steps=4)
    return estimator


@pytest.mark.parametrize("use_tpu", [False, True])
def test_layer_made_in_model_fn(use_tpu, tmp_path):
    def network(features, is_training):
        return jax_layer()(features, training=is_training)

    def values(name):
        estimator = trained(network, tmp_path / name, use_tpu=use_tpu)
        assert estimator.evaluate(batches_of(X, Y))["global_step"] == 4
        return {
            name: estimator.get_variable_value(name)
            for name in estimator.get_variable_names()
        }

    first, second = values("one"), values("two")
    assert {*first} == {
        "global_step",
        "jax_layer/more.0",
        "jax_layer/state.calls",
        "jax_layer/w",
        "sgd/iteration",
    }
    assert first["jax_layer/state.calls"] == 4
    assert np.any(first["jax_layer/more.0"])
    # They depend only on the seed.
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])


def test_layer_made_before(tmp_path):
    def names(number):
        layer = jax_layer(name="own")
        layer.build((None, 3))
        estimator = trained(
            lambda x, is_training: layer(x, training=is_training),
            tmp_path / str(number),
        )
        return estimator.get_variable_names()

    first = names(1)
    assert first[1:4] == ["own/more.0", "own/state.calls", "own/w"]
    assert names(2) == first


def test_modules_of_linen(tmp_path):
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, training):
            x = nn.BatchNorm(use_running_average=not training)(x)
            x = nn.Dropout(0.1, deterministic=not training)(x)
            return nn.Dense(1)(x)

    estimator = trained(
        lambda x, is_training: keras.layers.FlaxLayer(Net())(x, training=is_training),
        tmp_path,
        use_tpu=True,
    )
    own = [n for n in estimator.get_variable_names() if n.startswith("flax")]
    assert own == [
        "flax_layer/params.BatchNorm_0.bias",
        "flax_layer/params.BatchNorm_0.scale",
        "flax_layer/params.Dense_0.bias",
        "flax_layer/params.Dense_0.kernel",
        "flax_layer/state.batch_stats.BatchNorm_0.mean",
        "flax_layer/state.batch_stats.BatchNorm_0.var",
    ]
    mean = estimator.get_variable_value(own[4])
    expected = np.zeros(3)
    for start in range(0, 64, 16):
        expected = 0.99 * expected + 0.01 * X[start : start + 16].mean(0)
    np.testing.assert_allclose(mean, expected, rtol=1e-4, atol=1e-7)
