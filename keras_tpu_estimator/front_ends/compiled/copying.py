"""Copies of Keras models, on variables of their own."""

import contextlib
from collections.abc import Iterator
from collections.abc import Mapping

import jax.numpy as jnp
import keras

from keras_tpu_estimator.ground.base.types import TensorLike


def copied(model: keras.Model) -> keras.Model:
    """A model like this one, with the same values.

    Raises:
        ValueError: It cannot be copied.
    """
    with _explained(model):
        copy = _cloned(model)
        for to, variable in zip(copy.variables, model.variables, strict=True):
            # Keras's own `fit` and `evaluate` use up the arrays of a model.
            to.assign(jnp.array(variable.value))
    return copy


def with_values(
    model: keras.Model, values: Mapping[str, TensorLike]
) -> keras.Model:
    """A model like this one, with other values.

    Args:
        model: The model, whose own values are not read.
        values: Values by the paths that variables have in this model. What
            random layers draw from may be missing.

    Raises:
        ValueError: One is missing, or the model cannot be copied.
    """
    with _explained(model):
        copy = _cloned(model)
    # Layers without a name of their own are called otherwise in a copy.
    pairs = list(zip(copy.variables, model.variables, strict=True))
    weights = {variable.path for variable in model.weights}
    missing = weights - values.keys()
    if missing:
        raise ValueError(
            f"The checkpoint should have all weights of the Keras model "
            f"{model.name!r} that it predicts with. Received none for "
            f"{sorted(missing)}. Remove layers that are not used."
        )
    for to, variable in pairs:
        if variable.path in values:
            to.assign(values[variable.path])
    return copy


def _cloned(model: keras.Model) -> keras.Model:
    with _not_compiled(model):
        return keras.models.clone_model(model)


@contextlib.contextmanager
def _explained(model: keras.Model) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"The Keras model {model.name!r} cannot be copied. Expected one "
            "whose layers and classes have a `get_config` with all arguments "
            f"of their constructor. Received {type(error).__name__}: {error} "
            "Write a model_fn that uses the model instead."
        ) from error


@contextlib.contextmanager
def _not_compiled(model: keras.Model) -> Iterator[None]:
    """Has Keras copy a model alone, since functions have no config."""
    compiled, model.compiled = model.compiled, False
    try:
        yield
    finally:
        model.compiled = compiled
