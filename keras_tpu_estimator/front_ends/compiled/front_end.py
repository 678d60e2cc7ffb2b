"""The front end of estimators made by `from_keras`."""

import warnings
from collections.abc import Callable
from typing import Any

import keras

from keras_tpu_estimator.engine.inputs import batch
from keras_tpu_estimator.engine.program.bound_model_fn import SpecFunction
from keras_tpu_estimator.engine.program.options import TraceOptions
from keras_tpu_estimator.engine.program.program import Program
from keras_tpu_estimator.front_ends.compiled import weighting
from keras_tpu_estimator.front_ends.keras.front_end import KerasFrontEnd
from keras_tpu_estimator.front_ends.keras.of_keras_model import OfKerasModel
from keras_tpu_estimator.ground.base.types import Features
from keras_tpu_estimator.ground.base.types import Labels
from keras_tpu_estimator.ground.mesh.cores import ONE_CORE
from keras_tpu_estimator.ground.mesh.cores import Cores
from keras_tpu_estimator.ground.tracing import keras_internals


class CompiledFrontEnd(KerasFrontEnd):
    """The front end of a compiled Keras model; see `FrontEnd`.

    Args:
        keras_model: The `model_fn` that calls the model.
    """

    keras_model: OfKerasModel

    def __init__(self, keras_model: OfKerasModel):
        self.keras_model = keras_model

    def make_program(
        self,
        call_model_fn: SpecFunction,
        seed: int | None = None,
        options: TraceOptions | None = None,
        cores: Cores = ONE_CORE,
    ) -> Program:
        """Returns the program; warns about options that have no effect."""
        if options is not None and options.dtype_policy is not None:
            _check_policy(self.keras_model.keras_model, options.dtype_policy)
        return super().make_program(call_model_fn, seed, options, cores)

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


def _check_policy(model: keras.Model, policy: str) -> None:
    """Warns of a dtype policy that none of a model's layers has."""
    layers = keras_internals.layers_of(model)
    if any(layer.dtype_policy.name == policy for layer in layers):
        return
    warnings.warn(
        f"`RunConfig.dtype_policy` must be set before layers are made. "
        f"Received {policy!r} for the Keras model {model.name!r}, whose layers "
        "keep their own policies, so it has no effect. Call "
        f"keras.config.set_dtype_policy({policy!r}) before you make the model.",
        UserWarning,
        stacklevel=2,
    )
