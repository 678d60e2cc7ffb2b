"""A `model_fn` of a single Keras model."""

from collections.abc import Mapping
from typing import Protocol
from typing import runtime_checkable

import keras

from keras_tpu_estimator.ground.base.types import Features
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.base.types import TensorLike


@runtime_checkable
class OfKerasModel(Protocol):
    """A `model_fn` that calls one compiled Keras model and nothing else."""

    @property
    def keras_model(self) -> keras.Model:
        """The model, with the values that training starts from."""

    def trained_model(self, values: Mapping[str, TensorLike]) -> keras.Model:
        """A compiled copy of the model with other values.

        Args:
            values: Values by path, those of the optimizer too if there are.
        """

    @property
    def inputs(self) -> Mapping[str, keras.KerasTensor] | None:
        """The model's symbolic inputs by name, or `None` if it has none."""

    def predictions(self, model: keras.Model, features: Features) -> Nest:
        """The predictions of PREDICT, by another model of this kind."""
