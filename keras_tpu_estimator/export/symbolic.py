"""A `model_fn` as a functional Keras model, called with symbolic inputs."""

from collections.abc import Callable, Mapping

import jax
import keras

from keras_tpu_estimator.engine.program.bound_model_fn import SpecFunction
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import Nest, TensorLike
from keras_tpu_estimator.ground.tracing import keras_internals
from keras_tpu_estimator.ground.tracing.user_places import place_of_error
from keras_tpu_estimator.ground.tracing.variables import NoScopeError


def symbolic_model(
    call: SpecFunction,
    specs: Nest,
    arrange: Callable[[Nest], Nest] = lambda inputs: inputs,
) -> keras.Model:
    """Calls `model_fn` in PREDICT with symbolic inputs, outside of any trace.

    Args:
        call: The user's function.
        specs: Nest of `FeatureSpec`s; their names are those of the inputs.
        arrange: Makes of the nest of inputs what the model takes. By default
            it takes the nest.

    Returns:
        A model from features to predictions.

    Raises:
        ValueError: `model_fn` does more than Keras's symbols can.
    """
    inputs = jax.tree.map(
        lambda spec: keras.Input(spec.shape[1:], dtype=spec.dtype.name, name=spec.name),
        specs,
    )
    try:
        with keras_internals.fresh_names():
            spec = call(inputs, None, ModeKeys.PREDICT, {"use_tpu": False})
            return keras.Model(arrange(inputs), spec.predictions)
    except NoScopeError as error:
        raise ValueError(
            "`model_fn` cannot be made a Keras model. Expected only Keras's "
            "layers and keras.ops in mode 'infer'. Received "
            f"`{error.caller}`{_place(error)}, "
            "which is for what JAX traces and XLA compiles: neither Keras nor "
            "TensorFlow has operations for that. Use export_saved_model with "
            "RunConfig(export_backend='jax'), or layers of Keras in its place."
        ) from error
    except Exception as error:
        raise ValueError(
            "`model_fn` cannot be made a Keras model. Expected only Keras's "
            "layers and keras.ops in mode 'infer'. Received "
            f"{type(error).__name__}{_place(error)}: {error} Put other "
            "functions into a keras.layers.Layer, or use export_saved_model "
            "with RunConfig(export_backend='jax')."
        ) from error


def _place(error: Exception) -> str:
    """Returns the last line of the user's code that an error comes from."""
    place = place_of_error(error)
    return "" if place is None else f" at {place.line}"


def set_weights(model: keras.Model, values: Mapping[str, TensorLike]) -> None:
    """Gives a symbolic model values by path.

    Raises:
        ValueError: There is none for a weight.
    """
    missing = [v.path for v in model.weights if v.path not in values]
    if missing:
        raise ValueError(
            "The Keras model should have the variables of the checkpoint. It "
            f"has others: {missing}. The checkpoint has {sorted(values)}. Give "
            "the layers names of their own."
        )
    for variable in model.variables:
        if variable.path in values:
            variable.assign(values[variable.path])
