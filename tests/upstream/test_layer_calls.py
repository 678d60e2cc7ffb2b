"""Layers of Keras: masks, and layers of JAX functions."""

import contextlib

import jax
import keras
import numpy as np
import pytest

from keras_tpu_estimator.base.tracing.array_trees import names_in_layers
from keras_tpu_estimator.base.upstream import keras_layers


def test_masks():
    ids = np.array([[3, 0], [0, 2]])
    embedded = keras.layers.Embedding(4, 2, mask_zero=True)(ids)
    mask = keras_layers.mask_of(embedded)
    np.testing.assert_array_equal(mask, ids != 0)
    assert keras_layers.mask_of(ids) is None
    ones, zeros = np.ones((2, 2), "float32"), np.zeros((2, 2), "float32")
    masked = keras_layers.with_mask(ones * [[9, 0], [0, 1]], mask)
    metric = keras.metrics.MeanAbsoluteError()
    metric.update_state(zeros[..., None], masked[..., None])
    assert float(metric.result()) == 2.5
    metric.reset_state()
    masked = keras_layers.with_mask(masked[..., None], mask)
    metric.update_state(zeros[..., None], masked)
    assert float(metric.result()) == 5.0
    unmasked = keras_layers.with_mask(masked, None)
    assert keras_layers.mask_of(unmasked) is None


def test_weights_of_jax_layers_are_named_by_their_leaves():
    params = {"w": np.ones(2), "more": [1.0, "text"]}
    with keras_layers.jax_functions_traced(names_in_layers):
        layer = keras.layers.JaxLayer(
            lambda params, state, inputs: (inputs, state),
            params=params,
            state={"w": 0},
        )
    names = [weight.name for weight in layer.weights]
    assert sorted(names) == ["more.0", "state.w", "w"]


def test_jax_layers_are_those_of_keras_outside_blocks():
    layer = keras.layers.JaxLayer(
        lambda params, inputs: inputs, params={"w": np.ones(2)}
    )
    assert [weight.name.partition("_")[0] for weight in layer.weights] == ["variable"]
    with pytest.raises(ValueError, match="cannot be built in a tracing scope"):
        jax.make_jaxpr(
            lambda x: keras.layers.JaxLayer(
                lambda params, inputs: inputs, lambda rng, inputs: {"w": 0.0}
            )(x)
        )(np.ones((1, 2)))


@pytest.mark.parametrize("key", [False, True])
def test_masks_of_the_inputs_of_attention_are_kept_in_blocks(key):
    ids = np.array([[3, 0], [0, 2]])
    for is_block in (False, True):
        x = keras.layers.Embedding(4, 3, mask_zero=True)(ids)
        value = keras.layers.Embedding(4, 3, mask_zero=True)(ids)
        layer = keras.layers.MultiHeadAttention(2, 3)
        with keras_layers.masks_kept() if is_block else contextlib.nullcontext():
            layer(x, value, key=value if key else None)
        for tensor in (x, value):
            mask = keras_layers.mask_of(tensor)
            assert (mask is not None) is is_block
            assert mask is None or (mask == (ids != 0)).all()


def test_calls_of_layers_and_models_are_watched():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    called = []

    def watch(layer, args, kwargs):
        called.append((layer, args[0].shape, kwargs))

    with keras_layers.calls_watched(watch):
        model(np.ones((3, 1)), training=False)
    assert called[0] == (model, (3, 1), {"training": False})
    assert model.layers[0] in [layer for layer, _, _ in called]
    assert keras_layers.called_layer() is None


def test_innermost_called_layer():
    seen = []

    class Reporting(keras.layers.Layer):
        def call(self, x):
            seen.append(keras_layers.called_layer())
            return x

    layer = Reporting()
    with keras_layers.calls_watched(lambda *_: None):
        keras.Sequential([layer])(np.ones((1, 1)))
    layer(np.ones((1, 1)))
    assert seen[-2:] == [layer, None]


def test_operations_are_watched():
    names = []
    with keras_layers.operations_watched(
        lambda operation: names.append(operation.name)
    ):
        keras.ops.exp(keras.Input((2,)))
        keras.layers.Dense(1, name="own")
    assert names[-1] == "own"
    assert any(name.startswith("exp") for name in names)
