"""Copies of models by their configs."""

import keras
import numpy as np

from keras_tpu_estimator.base.upstream import keras_configs, keras_models


class Holding(keras.layers.Layer):
    """A layer that uses another layer from its config."""

    def __init__(self, held, **kwargs):
        super().__init__(**kwargs)
        self.held = held

    def call(self, x):
        return self.held(x)

    def get_config(self):
        held = keras.saving.serialize_keras_object(self.held)
        return {**super().get_config(), "held": held}

    @classmethod
    def from_config(cls, config):
        held = keras.saving.deserialize_keras_object(config.pop("held"))
        return cls(held, **config)


def test_model_of_the_same_config_shares_the_same_layers():
    rows = keras.Input((3,))
    dense = keras.layers.Dense(3, name="dense")
    model = keras.Model(rows, Holding(dense, name="holding")(dense(rows)))
    copy = keras_configs.from_own_config(model, {})
    names = [layer.name for layer in keras_models.layers_of(copy)]
    assert names == [layer.name for layer in keras_models.layers_of(model)]
    assert {"dense", "holding"} < {*names}
    assert len(copy.variables) == len(model.variables) == 2
    kernel, bias = copy.variables
    assert kernel is not model.variables[0]
    kernel.assign(2 * np.eye(3))
    np.testing.assert_array_equal(
        copy(np.ones((1, 3), "float32")), np.full((1, 3), 4.0)
    )
