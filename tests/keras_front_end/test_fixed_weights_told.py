"""Tests the warning about parts of a trained model that nothing trains."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import estimator_of, model_fn_of, regression_data, repeated

import keras_tpu_estimator as kte

X, Y = regression_data()
BACKBONE = {"w": jnp.ones((3, 32)), "w2": jnp.ones((32, 16))}


def backbone(p, features):
    return jnp.tanh(features @ p["w"]) @ p["w2"]


def trained(features_of, model_dir):
    def network(features, is_training):
        return keras.layers.Dense(1)(features_of(features))

    estimator_of(model_fn_of(network), model_dir).train(repeated(X, Y), steps=1)


def test_backbone_in_a_closure(tmp_path):
    with pytest.warns(
        UserWarning,
        match=r"neither trained nor saved: float32 of shape \(32, 16\) and "
        r"1 more, 608 numbers in total, closed over as constants. .*"
        r"kte.jax_params\(name, init\)",
    ) as caught:
        trained(lambda x: backbone(BACKBONE, x), tmp_path)
    assert len(caught) == 1


def test_backbone_that_is_made_in_each_trace(tmp_path):
    def features_of(x):
        w = jax.random.normal(jax.random.key(0), (3, 32))
        return x @ w

    with pytest.warns(
        UserWarning,
        match=r"of shape \(3, 32\), drawn from the same key in each step",
    ):
        trained(features_of, tmp_path)


@pytest.mark.parametrize(
    "features_of",
    [
        lambda x: backbone(kte.jax_params("b", BACKBONE), x),
        lambda x: backbone(kte.jax_params("b", BACKBONE, False), x),
        lambda x: backbone(jax.lax.stop_gradient(BACKBONE), x),
        lambda x: keras.layers.Dense(32)(x) + np.ones((16, 32), "float32"),
    ],
)
def test_no_warning(features_of, tmp_path):
    trained(features_of, tmp_path)


def test_nnx_backbone(tmp_path):
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
    net = nnx.Linear(3, 32, rngs=nnx.Rngs(0))
    with pytest.warns(UserWarning, match=r"\(3, 32\), closed over"):
        trained(net, tmp_path / "closed over")
    with pytest.warns(UserWarning, match=r"\(3, 32\), drawn"):
        trained(lambda x: nnx.Linear(3, 32, rngs=nnx.Rngs(0))(x), tmp_path / "made")
    trained(lambda x: kte.jax_params("net", net)(x), tmp_path / "variables")


@pytest.mark.slow
def test_equinox_backbone(tmp_path):
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    net = eqx.nn.Linear(3, 32, key=jax.random.key(0))
    with pytest.warns(UserWarning, match=r"\(32, 3\), closed over"):
        trained(jax.vmap(net), tmp_path / "closed over")
    trained(lambda x: jax.vmap(kte.jax_params("net", net))(x), tmp_path / "own")
