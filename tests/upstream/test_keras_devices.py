"""Operations of Keras for the devices of a program."""

import functools
import sys
import types

import jax
import keras
import numpy as np
import pytest

from keras_tpu_estimator.base.upstream import keras_devices

keras_nn = keras_devices.ATTENTION.target.owner


def jaxpr_of(function, *args):
    # JAX caches the traces of a function.
    return str(jax.make_jaxpr(lambda *args: function(*args))(*args))


def test_functions_are_traced_for_the_given_devices():
    logits = np.ones((2, 3), "float32")

    def argmax(x):
        return keras.ops.argmax(x, -1)

    own = jaxpr_of(argmax, logits)
    with keras_devices.on_platform("tpu"):
        told = jaxpr_of(argmax, logits)
        with keras_devices.on_platform("cpu"):
            assert jaxpr_of(argmax, logits) == own
    # Keras does this for CPUs, which ignore the sign of zero.
    assert "select_n" in own
    assert "select_n" not in told
    assert jaxpr_of(argmax, logits) == own


def test_cudnn_is_only_for_gpus(monkeypatch):
    gpu = types.SimpleNamespace(platform="gpu", process_index=0)
    monkeypatch.setattr(jax, "devices", lambda: [gpu])
    rnn = sys.modules["keras.src.backend.jax.rnn"]
    with keras_devices.on_platform("gpu"):
        assert rnn._is_gpu_available()
    with keras_devices.on_platform("tpu"):
        assert not rnn._is_gpu_available()


QUERY = np.ones((2, 128, 2, 128), "float32")


def attended(query, **settings):
    return keras.ops.dot_product_attention(query, query, query, **settings)


@pytest.fixture
def finds_a_tpu(monkeypatch):
    """Makes Keras's attention detect a TPU."""

    class Found:
        devices = staticmethod(lambda: [types.SimpleNamespace(platform="tpu")])

        def __getattr__(self, name):
            return getattr(jax, name)

    monkeypatch.setattr(keras_nn, "jax", Found())


def test_keras_flash_attention_is_wrong_on_a_tpu(finds_a_tpu, monkeypatch):
    """If this test fails, Keras's flash attention can be allowed again."""
    kernel = keras_nn.splash_attention_kernel
    make = functools.partial(kernel.make_splash_mha, interpret=True)
    monkeypatch.setattr(kernel, "make_splash_mha", make)
    query = np.random.default_rng(0).normal(size=QUERY.shape)
    query = query.astype("float32")[:1, :, :1]
    found = jax.jit(attended)(query)
    causal = jax.nn.dot_product_attention(
        query, query, query, is_causal=True, scale=1.0
    )
    np.testing.assert_allclose(found, causal, rtol=1e-5, atol=1e-6)
