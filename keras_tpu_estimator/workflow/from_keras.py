"""Estimators of compiled Keras models."""

from collections.abc import Mapping
from typing import Any

import keras

from keras_tpu_estimator.api.config.run_config import RunConfig
from keras_tpu_estimator.api.model_fn.updates import check_unscaled
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.estimator.tpu_estimator import TPUEstimator
from keras_tpu_estimator.front_ends.compiled import weighting
from keras_tpu_estimator.front_ends.compiled.compile_arguments import (
    CompileArguments,
)
from keras_tpu_estimator.front_ends.compiled.copying import copied
from keras_tpu_estimator.front_ends.compiled.keras_model_fn import KerasModelFn

_OVERRIDDEN = (
    "compute_loss",
    "compute_metrics",
    "predict_step",
    "test_step",
    "train_step",
)


def from_keras(
    keras_model: keras.Model,
    model_dir: PathLike | None = None,
    config: RunConfig | None = None,
    metric_names_map: Mapping[str, str] | None = None,
    class_weight: Mapping[int, float] | None = None,
    **estimator_arguments: Any,
) -> TPUEstimator:
    """Makes an estimator from a compiled Keras model.

    The counterpart of `tf.keras.estimator.model_to_estimator`. The estimator
    copies the model with its weights, trains the copy with a new optimizer,
    and saves it in checkpoints. The model itself does not change.

    `input_fn` returns batches as Keras data sets do: features, pairs, or
    triples of features, labels and sample weights. Training logs the metrics of
    `compile`, and `evaluate` returns them, under Keras's names. `predict`
    yields dicts with the model's output names as keys, which are also the
    outputs of its exports.

    Args:
        keras_model: A built and compiled model: functional, sequential, or of a
            class with a `get_config`.
        model_dir: As in `TPUEstimator`.
        config: As in `TPUEstimator`. Defaults to `RunConfig()`.
        metric_names_map: New names of metrics, by Keras's names. Defaults to
            none.
        class_weight: Dict from classes to weights of their examples in
            training, as in `fit`. Defaults to equal weights.
        **estimator_arguments: Other arguments of `TPUEstimator`:
            `train_batch_size`, which is required unless `use_tpu=False`,
            `eval_batch_size`, `predict_batch_size`, ...

    Returns:
        A `TPUEstimator`.

    Raises:
        ValueError: The model is not built or not compiled, cannot be copied, or
            has a custom `train_step`.
        TypeError: It is not a Keras model, or `class_weight` is not such a
            dict.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import keras, numpy as np
    >>> model = keras.Sequential(
    ...     [keras.layers.Input((2,)), keras.layers.Dense(1, name="y")])
    >>> model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    >>> estimator = kte.from_keras(
    ...     model, use_tpu=False, train_batch_size=4, eval_batch_size=4)
    >>> x = np.ones((8, 2), "float32")
    >>> def input_fn(params):
    ...     return x, 3 * x[:, :1]
    >>> result = estimator.train(input_fn, steps=50).evaluate(input_fn)
    >>> sorted(result), bool(result["mae"] < 1e-3)
    (['global_step', 'loss', 'mae'], True)
    >>> next(estimator.predict(input_fn))["y"].shape
    (1,)
    """
    _check_model(keras_model)
    return TPUEstimator(
        KerasModelFn(
            copied(keras_model),
            CompileArguments.from_model(keras_model),
            dict(metric_names_map or {}),
            weighting.checked(class_weight),
        ),
        model_dir=model_dir,
        config=RunConfig() if config is None else config,
        **estimator_arguments,
    )


def _check_model(model: object) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`keras_model` must be a keras.Model. Received: {shown(model)}. "
            "Load a file with keras.models.load_model first."
        )
    if not model.built:
        raise ValueError(
            f"The Keras model {model.name!r} must be built, so that it has "
            "initial weights. Begin it with a keras.Input, or call it on a "
            "batch first."
        )
    if not model.compiled:
        raise ValueError(
            f"The Keras model {model.name!r} must be compiled, because its "
            "optimizer and loss are used. Call `model.compile(optimizer, "
            "loss, metrics=...)` before `from_keras`."
        )
    overridden = [
        name
        for name in _OVERRIDDEN
        if getattr(type(model), name) is not getattr(keras.Model, name)
    ]
    if overridden:
        raise ValueError(
            f"The class {type(model).__name__} overrides {overridden}, which an "
            "estimator does not call. Train by the arguments of `compile`, or "
            "write a model_fn that uses the model and defines the training "
            "step."
        )
    check_unscaled(getattr(model, "optimizer", None))
