"""`tf.keras.estimator.model_to_estimator`: estimators of compiled tf-keras models.

The `model_fn` clones the model into its graph, with the features as inputs and the
labels as targets. The clone's loss, metrics and updates are those of the estimator. Its
weights begin with those of a checkpoint that is written first.
"""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import jax
import tensorflow.compat.v1 as tf

from keras_tpu_estimator.api.config.validation import resolve_model_dir
from keras_tpu_estimator.api.model_fn.export_outputs import PredictOutput
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.upstream import tf_keras_models
from keras_tpu_estimator.tf1.shims.resolving import resolve
from keras_tpu_estimator.tf1.spec import EstimatorSpec
from keras_tpu_estimator.tf1_tools.tf_estimator.estimators import Estimator
from keras_tpu_estimator.tf1_tools.tf_estimator.run_configs import RunConfig

_FORMATS = (None, "saver", "checkpoint")
# Metrics whose names in TF1 are not those of their functions.
_SHORT_NAMES = {"accuracy": "acc", "acc": "acc", "crossentropy": "ce", "ce": "ce"}


def model_to_estimator(
    keras_model: Any = None,
    keras_model_path: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: PathLike | None = None,
    config: RunConfig | None = None,
    checkpoint_format: str | None = "saver",
    use_v2_estimator: bool = False,
) -> Estimator:
    """Makes an estimator of a compiled functional or sequential model.

    The features are a tensor, or a dict by the names of the inputs; or they are
    `{"features": features, "sample_weights": weights}`.

    Args:
        keras_model: The model. Training and evaluation begin with its trainable
            weights, and an export with all of them, as in TensorFlow 1.15.
        keras_model_path: The file of a model, in place of `keras_model`.
        custom_objects: Functions and classes by their names in the model.
        model_dir: As in `Estimator`. The weights are saved in its folder `keras`.
        config: See there.
        checkpoint_format: 'saver' or 'checkpoint'; both name variables as in the graph.
        use_v2_estimator: Has no effect.

    Raises:
        ValueError: Not exactly one model is given, or it is not compiled, or neither
            functional nor sequential.
    """
    del use_v2_estimator
    if (keras_model is None) == (keras_model_path is None):
        raise ValueError(
            "`model_to_estimator` needs either `keras_model` or `keras_model_path`. "
            f"Received: {keras_model!r}, {keras_model_path!r}. Pass one of them."
        )
    if checkpoint_format not in _FORMATS:
        raise ValueError(
            f"`checkpoint_format` must be 'saver' or 'checkpoint'. Received: "
            f"{checkpoint_format!r}. Leave it out."
        )
    if keras_model is None:
        load = resolve("keras.models").load_model
        keras_model = load(keras_model_path, custom_objects)
    _check(keras_model)
    config = RunConfig() if config is None else config
    model = _Model(keras_model, dict(custom_objects or {}))
    folder = resolve_model_dir(model_dir, config) or tempfile.mkdtemp()
    start = model.saved(os.path.join(folder, "keras"))
    return Estimator(model.model_fn(), model_dir, config, warm_start_from=start)


def _check(model: Any) -> None:
    if not getattr(model, "optimizer", None):
        raise ValueError(
            f"`keras_model` must be compiled. Received: {model!r}. Call its method "
            "`compile` first."
        )
    if not tf_keras_models.is_functional(model):
        raise ValueError(
            "`keras_model` must be functional, or sequential with the shape of its "
            f"input. Received: {model!r}. Write it as tf.keras.Model(inputs, outputs)."
        )


@dataclasses.dataclass(frozen=True)
class _Model:
    """A compiled model, with what its session and its graph contain.

    Attributes:
        model: The model.
        custom_objects: Functions and classes by their names in it.
    """

    model: Any
    custom_objects: dict[str, Any]

    def saved(self, folder: str) -> str:
        """Writes a checkpoint of the present weights, unless the folder has one.

        Returns:
            The prefix of the checkpoint.
        """
        latest = tf.train.latest_checkpoint(folder)
        if latest is not None:
            return str(latest)
        values = self.model.get_weights()
        with tf.Graph().as_default(), tf.Session() as session:
            step = tf.train.create_global_step()
            clone = tf_keras_models.cloned(
                self.model,
                is_training=False,
                custom_objects=self.custom_objects,
                compile_clone=False,
            )
            session.run(step.initializer)
            for variable, value in zip(clone.weights, values, strict=True):
                variable.load(value, session)
            tf.gfile.MakeDirs(folder)
            saver = tf.train.Saver([step, *clone.weights])
            return str(saver.save(session, os.path.join(folder, "keras_model.ckpt")))

    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """Makes the `model_fn`."""
        optimizer_config = None
        # Optimizers of `tf.train` have none. Others may read variables of this graph.
        with contextlib.suppress(NotImplementedError):
            optimizer_config = self.model.optimizer.get_config()

        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            clone = self._clone(features, labels, mode, optimizer_config)
            predictions = dict(zip(clone.output_names, clone.outputs, strict=True))
            outputs = {"serving_default": PredictOutput(predictions)}
            if mode == ModeKeys.PREDICT:
                return EstimatorSpec(mode, predictions, export_outputs=outputs)
            train_op = _train_op(clone) if mode == ModeKeys.TRAIN else None
            return EstimatorSpec(
                mode,
                predictions,
                clone.total_loss,
                train_op,
                _metrics(clone) if mode == ModeKeys.EVAL else None,
            )

        return model_fn

    def _clone(self, features: Any, labels: Any, mode: str, optimizer: Any) -> Any:
        """Returns the model in this graph, with targets except in PREDICT."""
        weights = None
        if isinstance(features, dict) and set(features) == _WEIGHTED:
            features, weights = features["features"], features["sample_weights"]
        options: dict[str, Any] = {"compile_clone": mode != ModeKeys.PREDICT}
        if mode != ModeKeys.PREDICT:
            options |= {
                "target_tensors": _ordered("labels", labels, self.model.output_names),
                "optimizer_iterations": tf.train.get_or_create_global_step(),
                "optimizer_config": optimizer,
            }
        clone = tf_keras_models.cloned(
            self.model,
            mode == ModeKeys.TRAIN,
            input_tensors=_ordered("features", features, self.model.input_names),
            custom_objects=self.custom_objects,
            **options,
        )
        if weights is not None and mode != ModeKeys.PREDICT:
            names = clone.output_names
            if not isinstance(weights, dict | list | tuple):
                weights = [weights] * len(names)
            ordered = _ordered("sample_weights", weights, names)
            tf_keras_models.set_sample_weights(clone, ordered)
        return clone


_WEIGHTED = {"features", "sample_weights"}


def _ordered(kind: str, values: Any, names: list[str]) -> list[Any]:
    """Returns tensors in the order of the inputs or outputs of a model."""
    if isinstance(values, dict):
        if set(values) != set(names):
            raise KeyError(
                f"The keys of {kind} must be {sorted(names)}. Received: "
                f"{sorted(map(str, values))}. Return these keys from input_fn."
            )
        values = [values[name] for name in names]
    elif not isinstance(values, list | tuple):
        values = [values]
    return [tf.convert_to_tensor_or_sparse_tensor(value) for value in values]


def _train_op(model: Any) -> Any:
    """Returns the updates of the optimizer and of the layers."""
    with tf.name_scope("training"):
        updates = model.optimizer.get_updates(model.total_loss, model.trainable_weights)
    return tf.group(updates, model.updates)


def _metrics(model: Any) -> dict[str, Any]:
    """Returns the metrics of a model by their names in TF1."""
    passed, metrics = tf_keras_models.metrics_of(model)
    if not passed:
        return {}
    names = {
        name: _SHORT_NAMES.get(name) or _name_of(resolve("keras.metrics").get(name))
        for name in jax.tree.leaves(passed)
        if isinstance(name, str)
    }
    outputs = ["", *(f"{name}_" for name in model.output_names)]
    renamed = {o + name: o + now for o in outputs for name, now in names.items()}
    return {renamed.get(metric.name, metric.name): metric for metric in metrics}


def _name_of(metric: Any) -> str:
    return str(getattr(metric, "name", None) or metric.__name__)
