"""Tests the masks of tensors that attention and other layers read."""

import gc
import threading

import keras
import numpy as np
import pytest
from helpers import estimator_of, regression_data, repeated
from helpers import model_fn_of as model_fn_of_network
from keras import layers, ops

import keras_tpu_estimator as kte

IDS = np.array([[1, 2, 0, 0], [3, 1, 2, 0], [1, 0, 0, 0], [2, 2, 2, 2]])


def network(ids, before):
    """Means of words by attention, which ignores the padding."""
    x = layers.Embedding(4, 3, mask_zero=True, name="words")(ids)
    if before:
        layers.MultiHeadAttention(2, 3, name="unused")(x, x)
    attended = layers.Attention(name="attention")([x, x])
    return layers.GlobalAveragePooling1D(name="mean")(attended)


def model_fn_of(before):
    def model_fn(features, labels, mode, params):
        y = network(features["ids"], before)
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, {"y": y})
        loss = ops.mean(y**2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    return model_fn


def rows(made):
    return np.stack(
        [each["y"] for each in made.predict(lambda params: ({"ids": IDS}, None))]
    )


def test_layer_after_attention_is_masked(tmp_path):
    made = {}
    for before in (False, True):
        made[before] = estimator_of(
            model_fn_of(before),
            tmp_path / str(before),
            use_tpu=False,
            warm_start_from=kte.WarmStartSettings(
                {"words/embeddings": np.eye(4, 3, dtype="float32")}, "words"
            ),
        )
        made[before].train(lambda params: ({"ids": IDS}, None), steps=2)
    np.testing.assert_allclose(rows(made[True]), rows(made[False]), 1e-6)


def collect_on_another_thread():
    """Deletes unreachable tensors as a thread that writes or reads files may do."""
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()


def leave_masked(x):
    """Makes tensors with masks that only the garbage collector deletes."""
    for _ in range(50):
        tensors = [layers.Masking()(x * 2)]
        tensors.append(tensors)


@pytest.mark.parametrize("is_one_trace", [False, True])
def test_no_tensor_has_the_mask_of_a_deleted_one(is_one_trace, tmp_path):
    received = []

    class Receiving(layers.Layer):
        def call(self, x, mask=None):
            received.append(mask)
            return x

    def leaving(x, is_training):
        leave_masked(x[:, None])
        return layers.Dense(1)(x)

    def receiving(x, is_training):
        if is_one_trace:
            leave_masked(x[:, None])
            collect_on_another_thread()
        layer = Receiving(name="receiving")
        for tensor in [x * float(number) for number in range(1000)]:
            layer(tensor)
        return layers.Dense(1)(x)

    data = repeated(*regression_data())
    gc.disable()
    try:
        estimator_of(model_fn_of_network(leaving), tmp_path / "a").train(data, steps=1)
        collect_on_another_thread()
        estimator_of(model_fn_of_network(receiving), tmp_path / "b").train(
            data, steps=1
        )
    finally:
        gc.enable()
    assert received
    assert [mask for mask in received if mask is not None] == []
