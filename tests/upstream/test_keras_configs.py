"""Copies of models by their configs."""

import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_tpu_estimator.base.upstream import keras_configs, keras_models
from keras_tpu_estimator.base.upstream.private_names import PrivateName


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


_TRAINING = """
import sys
import keras
import numpy as np
import keras_tpu_estimator as kte

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, "relu")])
model.compile("sgd", "mse")
sizes = {"train_batch_size": 8, "eval_batch_size": 8, "predict_batch_size": 8}
config = kte.RunConfig(model_dir=sys.argv[1])
estimator = kte.from_keras(model, config=config, **sizes)
batch = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")
estimator.train(lambda params: iter([batch]), steps=1)
estimator.evaluate(lambda params: iter([batch]), steps=1)
assert len(list(estimator.predict(lambda params: iter([batch[0]])))) == 8
assert "tensorflow" not in sys.modules, "tensorflow imported"
"""


@pytest.mark.usefixtures("forked_programs")
def test_training_of_a_keras_model_does_not_import_tensorflow(
    tmp_path: pathlib.Path,
) -> None:
    subprocess.run([sys.executable, "-c", _TRAINING, str(tmp_path)], check=True)


def test_libraries_are_available_again_after_a_copy():
    library = PrivateName("", ("keras.src.utils.module_utils.LazyModule",)).value
    missing = library("library_that_is_not_installed")
    tabnanny = library("tabnanny")
    assert not missing.available
    with keras_configs._without_imports():
        assert library("json").available
        assert not tabnanny.available
        assert "tabnanny" not in sys.modules
    assert tabnanny.available
