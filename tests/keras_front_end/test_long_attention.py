"""Keras's attention under the kernel of a TPU, which a CPU interprets."""

import dataclasses
import functools
import logging
import types
from unittest import mock

import jax
import keras
import numpy as np
import pytest
from keras import layers

from keras_tpu_estimator.base.mesh.cores import ONE_CORE
from keras_tpu_estimator.base.upstream import keras_devices, keras_layers
from keras_tpu_estimator.front_ends.keras import long_attention
from keras_tpu_estimator.front_ends.keras.long_attention import attention_on

TPU = dataclasses.replace(ONE_CORE, device=types.SimpleNamespace(platform="tpu"))
RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 9, 4)).astype("float32")
KEPT = np.arange(9)[None] < np.array([[9], [5]])
DENSE = RNG.random((2, 9, 9)) < 0.6


@pytest.fixture(autouse=True)
def calls(attention_calls):
    return attention_calls


def on_tpu(function, *args):
    # JAX caches the traces of a function.
    def traced(*args):
        with (
            keras_devices.on_platform("tpu"),
            attention_on(TPU),
            keras_layers.masks_kept(),
        ):
            return function(*args)

    return jax.jit(traced)(*args)


class Own(layers.MultiHeadAttention):
    def _compute_attention(self, query, key, value, attention_mask=None, *args):
        return super()._compute_attention(query, key, value, DENSE, *args)


def multi_head(**kwargs):
    return layers.MultiHeadAttention(2, 4, **kwargs)


def grouped(**kwargs):
    return layers.GroupQueryAttention(4, 4, 2, **kwargs)


@pytest.mark.parametrize("make", [multi_head, grouped])
@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 1),
        ({"use_causal_mask": True}, 1),
        ({"value_mask": KEPT, "query_mask": KEPT, "use_causal_mask": True}, 1),
        ({"key_mask": KEPT}, 1),
        ({"attention_mask": KEPT[:, None]}, 1),
        ({"attention_mask": KEPT[:, None], "use_causal_mask": True}, 1),
        ({"attention_mask": DENSE}, 0),
        ({"attention_mask": DENSE, "use_causal_mask": True}, 0),
    ],
)
@pytest.mark.rows(6)
def test_layers_have_the_numbers_of_keras(make, settings, count, calls):
    layer = make()
    expected = layer(X, X, **settings)
    np.testing.assert_allclose(
        on_tpu(lambda x: layer(x, x, **settings), X), expected, atol=2e-6
    )
    assert len(calls) == count


@pytest.mark.parametrize("make", [multi_head, grouped])
def test_windows_of_layers_are_those_of_keras(make, calls):
    layer = make(sliding_window=3)
    expected = layer(X, X, value_mask=KEPT, use_causal_mask=True)
    value = on_tpu(lambda x: layer(x, x, value_mask=KEPT, use_causal_mask=True), X)
    np.testing.assert_allclose(value, expected, atol=2e-6)
    assert calls[0].window == (2, 2)


def test_layers_over_several_axes_are_those_of_keras(calls):
    """Their masks have another rank."""
    x = X.reshape(2, 3, 3, 4)
    kept = KEPT.reshape(2, 3, 3)
    layer = multi_head(attention_axes=2)
    expected = layer(x, x, value_mask=kept)
    np.testing.assert_allclose(
        on_tpu(lambda x: layer(x, x, value_mask=kept), x), expected, atol=2e-6
    )
    assert not calls


def test_export_computes_attention_anywhere(calls):
    """Its device is unknown, although the process may have found a TPU."""
    anywhere = dataclasses.replace(TPU, device=None)
    x = X.reshape(2, 9, 2, 2)

    def attend(x):
        with (
            mock.patch.object(type(anywhere), "platform", "tpu"),
            attention_on(anywhere),
        ):
            return keras.ops.dot_product_attention(x, x, x, flash_attention=True)

    expected = keras.ops.dot_product_attention(x, x, x)
    np.testing.assert_allclose(jax.jit(attend)(x), expected, atol=2e-6)
    assert not calls


def test_masks_of_a_trace_do_not_outlive_it():
    layer = multi_head(dropout=0.5)
    on_tpu(lambda x: layer(x, x, value_mask=KEPT), X)
    assert long_attention._layer_mask.get() is None


def test_padding_of_an_embedding_is_not_seen(calls):
    embedding = layers.Embedding(5, 4, mask_zero=True)
    layer = multi_head()
    ids = np.where(KEPT, 1 + np.arange(9) % 4, 0)

    def attend(ids):
        x = embedding(ids)
        return layer(x, x, use_causal_mask=True)

    expected = attend(ids)
    np.testing.assert_allclose(on_tpu(attend, ids), expected, atol=2e-6)
    (visibility,) = calls
    assert visibility.is_causal and visibility.keys is not None


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 1),
        ({"is_causal": True, "scale": 0.3}, 1),
        ({"mask": KEPT[:, None, None]}, 1),
        ({"mask": KEPT[:1, None, None], "is_causal": True}, 1),
        ({"flash_attention": False}, 0),
        ({"mask": DENSE[:, None]}, 0),
        ({"bias": np.ones((1, 1, 9, 9), "float32")}, 0),
    ],
)
@pytest.mark.rows(4)
def test_operation_has_the_numbers_of_keras(settings, count, calls, caplog):
    x = X.reshape(2, 9, 2, 2)

    def attend(x):
        return keras.ops.dot_product_attention(x, x, x, **settings)

    expected = attend(x)
    with caplog.at_level(logging.INFO, "keras_tpu_estimator"):
        np.testing.assert_allclose(on_tpu(attend, x), expected, atol=2e-6)
    assert len(calls) == count
    message = "An attention of 9 queries over 9 keys stores its scores, because"
    assert (message in caplog.text) == ("mask" in settings or "bias" in settings) * (
        not count
    )


@pytest.mark.parametrize(
    "make", [Own, functools.partial(layers.MultiHeadAttention, dropout=0.5)]
)
def test_other_layers_are_those_of_keras(make, calls):
    layer = make(2, 4)
    expected = layer(X, X, value_mask=KEPT)
    np.testing.assert_allclose(
        on_tpu(lambda x: layer(x, x, value_mask=KEPT), X), expected, atol=2e-6
    )
    assert not calls


def test_mask_of_a_layer_is_not_that_of_a_later_attention(calls):
    """A layer with dropout computes its mask and does not use the kernel."""
    layer = multi_head(dropout=0.5)
    x = X.reshape(2, 9, 2, 2)

    def attend(x):
        layer(X, X, value_mask=KEPT)
        return keras.ops.dot_product_attention(x, x, x, mask=DENSE[:, None])

    expected = attend(x)
    np.testing.assert_allclose(on_tpu(attend, x), expected, atol=2e-6)
    assert not calls


def test_short_attention_uses_the_kernel_if_asked(calls):
    x = X[:, :4].reshape(2, 4, 2, 2)
    for asked in (None, True):
        on_tpu(
            lambda x, asked=asked: keras.ops.dot_product_attention(
                x, x, x, flash_attention=asked
            ),
            x,
        )
        assert len(calls) == bool(asked)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mask": DENSE[:, None]}, "because its mask depends on both the query and"),
        ({"bias": np.ones((1, 1, 9, 9), "float32")}, "because it has a bias"),
    ],
)
def test_unsuitable_attention_is_refused_if_asked(settings, message):
    x = X.reshape(2, 9, 2, 2)
    with pytest.raises(ValueError, match=message):
        on_tpu(
            lambda x: keras.ops.dot_product_attention(
                x, x, x, flash_attention=True, **settings
            ),
            x,
        )


def test_capped_scores_are_refused():
    x = X.reshape(2, 9, 2, 2)
    with pytest.raises(ValueError, match=r"attn_logits_soft_cap=5.0. Omit it"):
        on_tpu(
            lambda x: keras_devices.ATTENTION.target.owner.dot_product_attention(
                x, x, x, attn_logits_soft_cap=5.0
            ),
            x,
        )


def test_other_devices_use_the_attention_of_keras(calls):
    x = X.reshape(2, 9, 2, 2)
    with attention_on(ONE_CORE):
        keras.ops.dot_product_attention(x, x, x)
    assert not calls
