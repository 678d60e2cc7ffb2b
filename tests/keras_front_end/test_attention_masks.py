"""Tests the masks of tensors that attention layers read."""

import keras
import numpy as np
from helpers import estimator_of
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
