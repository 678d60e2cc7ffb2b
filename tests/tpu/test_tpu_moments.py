"""Tests moments of bfloat16 activations with the TPU compiler."""

import pytest
from helpers import estimator_of, model_fn_of, regression_data, repeated, slow
from keras import layers, ops

from keras_tpu_estimator.base.upstream import keras_devices

DATA = repeated(*regression_data(examples=32, size=256))
NORMS = {
    "batch": lambda x: layers.BatchNormalization()(x, training=True),
    "layer": lambda x: layers.LayerNormalization()(x),
}


@pytest.mark.parametrize("kind", ["batch", slow("layer")])
def test_one_pass_takes_less_than_two(tmp_path, kind, monkeypatch):
    def network(features, is_training):
        x = ops.reshape(features, (-1, 16, 16, 1))
        x = NORMS[kind](layers.Conv2D(128, 3, padding="same")(x))
        return layers.Dense(1, dtype="float32")(ops.mean(x, (1, 2)))

    def cycles():
        config = {"dtype_policy": "mixed_bfloat16"}
        made = estimator_of(model_fn_of(network), tmp_path, True, 32, config=config)
        return made.plan(DATA, "v5e:2x2", print_fn=None).cost.cycles

    one = cycles()
    monkeypatch.setattr(keras_devices, "_NORMALIZATIONS", ())
    two = cycles()
    assert one < 0.9 * two, (one, two)
