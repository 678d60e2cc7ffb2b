"""Attention of JAX models on the cores of a program."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.mesh.cores import ONE_CORE
from keras_tpu_estimator.base.tpu import attention as kernel

TPU = dataclasses.replace(ONE_CORE, device=types.SimpleNamespace(platform="tpu"))
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 9, 2, 4)), "float32")
KEPT = jnp.arange(9)[None, None, None] < jnp.array([9, 5])[:, None, None, None]


@pytest.fixture(autouse=True)
def calls(attention_calls):
    return attention_calls


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 1),
        ({"is_causal": True, "scale": 0.3}, 1),
        ({"mask": KEPT, "local_window_size": (3, 1)}, 1),
        ({"local_window_size": 2, "is_causal": True}, 1),
        ({"mask": jnp.swapaxes(KEPT, 2, 3)}, 0),
        ({"bias": jnp.ones((1, 1, 9, 9))}, 0),
    ],
)
def test_numbers_are_those_of_jax(settings, count, calls):
    expected = jax.nn.dot_product_attention(X, X, X, **settings)
    with kernel.on_cores(TPU):
        value = kte.dot_product_attention(X, X, X, **settings)
    np.testing.assert_allclose(value, expected, atol=2e-6)
    assert len(calls) == count
    # Elsewhere it is JAX's own.
    np.testing.assert_array_equal(
        kte.dot_product_attention(X, X, X, **settings), expected
    )
    assert len(calls) == count


def test_shapes_without_a_batch_are_those_of_jax(calls):
    with kernel.on_cores(TPU):
        value = kte.dot_product_attention(X[0], X[0], X[0])
    expected = jax.nn.dot_product_attention(X[0], X[0], X[0])
    np.testing.assert_array_equal(value, expected)
    assert not calls
