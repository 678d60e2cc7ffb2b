"""A `model_fn` that only calls one compiled Keras model."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import keras

from keras_tpu_estimator.base.common.types import Features, PyTree, TensorLike


@runtime_checkable
class OfKerasModel(Protocol):
    """A `model_fn` that only calls one compiled Keras model."""

    @property
    def keras_model(self) -> keras.Model:
        """The model, with the initial values of training."""

    def trained_model(self, values: Mapping[str, TensorLike]) -> keras.Model:
        """Returns a compiled copy of the model with other values by path."""

    def copy_with(self, values: Mapping[str, TensorLike]) -> keras.Model:
        """Returns a copy of the model that is not compiled, with other values."""

    @property
    def inputs(self) -> Mapping[str, keras.KerasTensor] | None:
        """The model's symbolic inputs by name, or `None` if it has none."""

    def predictions(self, model: keras.Model, features: Features) -> PyTree:
        """Returns the predictions of PREDICT, by another model of this kind."""

    def as_outputs(self, predictions: Mapping[str, TensorLike]) -> PyTree:
        """Returns predictions in the structure of the model's outputs."""
