"""Export of a trained `model_fn` as a Keras file."""

import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import keras
import numpy as np

from keras_tpu_estimator.api.model_fn.spec import Spec
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, PathLike, PyTree, TensorLike
from keras_tpu_estimator.base.storage import transfers
from keras_tpu_estimator.base.storage.paths import is_url
from keras_tpu_estimator.engine.program.bound_model_fn import SpecFunction
from keras_tpu_estimator.export.loading import LoadedModel, load_model
from keras_tpu_estimator.export.served_model_fn import (
    ServedModelFn,
    set_weights,
    symbolic_model,
)
from keras_tpu_estimator.export.shapes import FeatureSpec
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.formats import loading
from keras_tpu_estimator.front_ends.front_end import OfKerasModel
from keras_tpu_estimator.front_ends.keras.front_end import KerasProgram

_WEIGHTS = ".weights.h5"
_MODEL = ".keras"


class Trained(Protocol):
    """The members of an estimator that the export uses."""

    def bound_model_fn(self) -> SpecFunction:
        """The `model_fn` with its `params` bound."""

    @property
    def model_dir(self) -> str:
        """The directory of its checkpoints."""

    def latest_checkpoint(self) -> str | None:
        """The prefix of the latest checkpoint."""


def export_keras(
    estimator: Trained,
    path: PathLike,
    features: Features = None,
    checkpoint_path: PathLike | None = None,
) -> str:
    """Writes a trained model into a file that Keras loads without this package.

    `model_fn` is called in PREDICT with Keras's symbolic inputs, so it can only
    use Keras layers and `keras.ops`. For an estimator of `from_keras`, the file
    contains the model it was made of: with the same inputs and outputs,
    compiled, and with the optimizer state, so that `fit` continues. The file is
    compared with the results of `predict` before this returns.

    Args:
        estimator: A trained `TPUEstimator`.
        path: A file that ends with '.keras', for the complete model
            (`keras.models.load_model`), or with '.weights.h5', for its weights
            only (`model.load_weights`).
        features: Dict of objects with a shape and a dtype, with the batch as
            the first dimension, as `model_fn` reads them; or a single one.
            Defaults to the inputs of the Keras model passed to `from_keras`, if
            it is functional or sequential.
        checkpoint_path: The checkpoint to export. Defaults to the latest.

    Returns:
        The path.

    Raises:
        ValueError: No checkpoint exists, the path has another ending, features
            are missing, or Keras cannot save the model.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import keras, numpy as np
    >>> def model_fn(features, labels, mode, params):
    ...     y = keras.layers.Dense(1)(features["x"])
    ...     if mode == kte.ModeKeys.PREDICT:
    ...         return kte.TPUEstimatorSpec(mode, predictions={"y": y})
    ...     loss = keras.ops.mean((y - labels) ** 2)
    ...     optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    ...     return kte.TPUEstimatorSpec(
    ...         mode, loss=loss, train_op=optimizer.minimize(loss))
    >>> x = np.ones((4, 3), "float32")
    >>> estimator = kte.TPUEstimator(
    ...     model_fn, config=kte.RunConfig(), use_tpu=False,
    ...     train_batch_size=4)
    >>> def input_fn(params):
    ...     return {"x": x}, x[:, :1]
    >>> estimator = estimator.train(input_fn, steps=1)
    >>> path = kte.export_keras(
    ...     estimator, estimator.model_dir + "/trained.keras", {"x": x})
    >>> keras.models.load_model(path).predict({"x": x}, verbose=0)["y"].shape
    (4, 1)
    """
    path = os.fsdecode(path)
    if not path.endswith((_MODEL, _WEIGHTS)):
        raise ValueError(
            f"The file must end with {_MODEL!r} or {_WEIGHTS!r}. Received: "
            f"{path!r}. The first is for a complete model, the second for its "
            "weights."
        )
    # The property `model_fn` also calls the `scaffold_fn`, which needs
    # variables.
    call = estimator.bound_model_fn()
    if getattr(call, "embeddings", None) is not None:
        raise NotImplementedError(
            "A Keras model must have all its layers in model_fn. Received a "
            "model with embedding_config_spec, whose embedding tables are "
            "outside of it. Use estimator.export_saved_model, which exports "
            "them."
        )
    keras_model = getattr(call, "function", None)
    if not isinstance(keras_model, OfKerasModel):
        keras_model = None
    specs = _specs(_inputs_of(keras_model) if features is None else features)
    checkpoint = location.resolve(
        checkpoint_path or estimator.latest_checkpoint() or estimator.model_dir
    )
    served = ServedModelFn(_all_predictions(call), ModeKeys.PREDICT, False)
    loaded = load_model(served, KerasProgram(served), checkpoint, specs)
    if keras_model is not None:
        predict = keras_model.predictions
        model = keras_model.trained_model(_with_slots(checkpoint, loaded.initial))
    else:
        predict = _predictions
        model = symbolic_model(call, specs)
        set_weights(model, loaded.initial)
    name = os.path.basename(path)
    # The temporary file is in the folder of the result, and has its ending, from which
    # Keras derives the format.
    folder = None if is_url(path) else os.path.dirname(os.path.abspath(path))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        partial = os.path.join(temporary, name)
        if name.endswith(_WEIGHTS):
            model.save_weights(partial)
        else:
            model.save(partial)
            # The content is trusted, because it was written here.
            model = keras.models.load_model(
                partial, _classes_of(model), safe_mode=False
            )
        _compare(functools.partial(predict, model), loaded)
        transfers.put(partial, path)
    return path


def _inputs_of(keras_model: OfKerasModel | None) -> Features:
    """Returns the inputs of a Keras model, in place of features."""
    inputs = None if keras_model is None else keras_model.inputs
    if inputs is None:
        raise ValueError(
            "`features` must be given, except for an estimator of a "
            "functional or sequential Keras model. Received: None. Pass a "
            "dict of arrays that `model_fn` reads, such as one batch of "
            "`input_fn`."
        )
    return inputs


def _with_slots(
    checkpoint: str, served: Mapping[str, jax.Array]
) -> dict[str, TensorLike]:
    """Returns values by path, including those that PREDICT does not read."""
    paths = loading.load_checkpoint(checkpoint).get_variable_to_shape_map().keys()
    return {
        **loading.read(checkpoint, sorted(paths - served.keys())),
        **served,
    }


def _specs(features: Features) -> PyTree:
    """Returns features as a pytree of `FeatureSpec`s of any batch size."""

    def spec(name: str, like: Any) -> FeatureSpec:
        dtype = getattr(like.dtype, "as_numpy_dtype", like.dtype)
        dtype = jax.dtypes.canonicalize_dtype(dtype)
        return FeatureSpec(name, (None, *like.shape[1:]), np.dtype(dtype))

    if isinstance(features, Mapping):
        return {name: spec(name, like) for name, like in features.items()}
    return spec("features", features)


def _all_predictions(call: SpecFunction) -> SpecFunction:
    """Calls `model_fn` for its predictions, regardless of its signatures."""

    def call_model_fn(*args: Any) -> Spec:
        return dataclasses.replace(call(*args), export_outputs=None)

    return call_model_fn


def _predictions(model: keras.Model, features: Features) -> PyTree:
    return model(features, training=False)


def _classes_of(model: keras.Model) -> dict[str, type]:
    """Returns the classes of a model and its layers by name."""
    classes: dict[str, type] = {type(model).__name__: type(model)}
    for layer in getattr(model, "layers", ()):
        classes |= _classes_of(layer)
    return classes


def _compare(predict: Callable[[Features], PyTree], loaded: LoadedModel) -> None:
    """Compares a file's predictions with those of `model_fn` in JAX."""
    first = loaded.trial[0]
    features = jax.tree.unflatten(jax.tree.structure(loaded.features), first.features)
    # The program's outputs are sorted by name, like those of a pytree.
    outputs = jax.tree.leaves(predict(features))
    for got, expected in zip(outputs, first.outputs, strict=True):
        if not np.allclose(got, expected, 1e-3, 1e-4, equal_nan=True):
            raise ValueError(
                "The Keras model must compute the same as `model_fn`. "
                f"Received: {np.asarray(got)!r}, while `model_fn` computes "
                f"{expected!r}. "
                "Variables without a layer and random numbers are not part "
                "of a Keras model: put them into a keras.layers.Layer."
            )
