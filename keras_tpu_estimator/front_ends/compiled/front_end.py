"""The front end of estimators made by `from_keras`."""

from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.base.common.types import Features, Labels
from keras_tpu_estimator.engine.inputs import batch
from keras_tpu_estimator.front_ends.compiled import weighting
from keras_tpu_estimator.front_ends.keras.front_end import KerasFrontEnd
from keras_tpu_estimator.front_ends.keras.of_keras_model import OfKerasModel


class CompiledFrontEnd(KerasFrontEnd):
    """The front end of a compiled Keras model; see `FrontEnd`.

    Args:
        keras_model: The `model_fn` that calls the model.
    """

    keras_model: OfKerasModel

    def __init__(self, keras_model: OfKerasModel):
        self.keras_model = keras_model

    def pair_of(self, value: Any) -> tuple[Features, Labels]:
        """Returns features with sample weights, and labels of a batch."""
        if isinstance(value, tuple | list) and len(value) == 3:
            features, labels, weights = value
            if weights is None:
                return features, labels
            return weighting.with_weights(features, weights), labels
        return batch.pair_of(value)

    def like(
        self, model_fn: Callable[..., Any], function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Marks a function as one that calls the same model."""
        del model_fn
        marked: Any = function
        marked.front_end = self
        return function
