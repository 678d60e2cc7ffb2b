"""The `model_fn` of a compiled Keras model."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import keras

from keras_tpu_estimator.api.model_fn.cross_shard_optimizer import (
    CrossShardOptimizer,
)
from keras_tpu_estimator.api.model_fn.spec import TPUEstimatorSpec
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.pickling import fields_of
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import (
    Features,
    Labels,
    PyTree,
    TensorLike,
)
from keras_tpu_estimator.base.tracing.variables import copying
from keras_tpu_estimator.engine.inputs import batch
from keras_tpu_estimator.front_ends.compiled import weighting
from keras_tpu_estimator.front_ends.compiled.compile_arguments import (
    CompileArguments,
    RecompiledModel,
)
from keras_tpu_estimator.front_ends.compiled.copying import (
    give_paths,
    keep_on_host,
    paths_of,
    with_values,
)
from keras_tpu_estimator.front_ends.compiled.layer_metrics import LayerMetrics
from keras_tpu_estimator.front_ends.compiled.metric_update import Counted
from keras_tpu_estimator.front_ends.compiled.training_metrics import (
    evaluation_metrics,
    training_metrics,
)
from keras_tpu_estimator.front_ends.front_end import FrontEnd, OfKerasModel
from keras_tpu_estimator.front_ends.keras.front_end import KerasFrontEnd


class CompiledFrontEnd(KerasFrontEnd):
    """The front end of a compiled Keras model."""

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
        return FrontEnd.like(self, model_fn, function)


@dataclasses.dataclass(frozen=True, eq=False)
class KerasModelFn:
    """The `model_fn` that implements the arguments of `compile`.

    Attributes:
        keras_model: The model, whose values never change: each program trains
            copies of its variables.
        metric_names: New names of metrics, by Keras's names.
        class_weight: Weights of examples in training by their class.
    """

    keras_model: keras.Model
    training: CompileArguments
    metric_names: Mapping[str, str]
    class_weight: Mapping[int, float] | None = None

    @property
    def front_end(self) -> CompiledFrontEnd:
        """The front end, which reads triples and makes Keras models of this one."""
        return CompiledFrontEnd(self)

    def __call__(
        self,
        features: Features,
        labels: Labels,
        mode: str,
        params: Mapping[str, object],
    ) -> TPUEstimatorSpec:
        """Calls the model with its inputs, or a dict of 'features' and
        'sample_weights'; several outputs need names.
        """
        del params
        with copying():
            return self._spec(features, labels, mode)

    def _spec(self, features: Features, labels: Labels, mode: str) -> TPUEstimatorSpec:
        model, training = self.keras_model, self.training
        features, weights = weighting.split(features)
        is_training = mode == ModeKeys.TRAIN
        if is_training and self.class_weight is not None:
            weights = weighting.by_class(self.class_weight, labels, weights)
        inputs = _inputs(model, features)
        if mode == ModeKeys.PREDICT:
            outputs = model(inputs, training=False)
            return TPUEstimatorSpec(mode, _named(model, outputs))

        def call() -> PyTree:
            return model(inputs, training=is_training), model.losses

        of_layers = LayerMetrics.from_call(model, call)
        outputs, losses = call()
        predictions = _named(model, outputs)
        names = training.output_names
        if names is not None:
            weights = weighting.by_output(weights, names, outputs)
        if training.loss is None and not losses:
            raise ValueError(
                f"The Keras model {model.name!r} must have a loss. Received "
                "none from `compile` and none from its layers. Pass `loss` "
                "to its `compile`."
            )
        loss = RecompiledModel(training).compute_loss(None, labels, outputs, weights)
        loss += sum(keras.ops.sum(layer_loss) for layer_loss in losses)
        counted = Counted(labels, outputs, weights)
        if mode == ModeKeys.EVAL:
            metrics = of_layers.beside(
                evaluation_metrics(training, counted, self.metric_names),
                self.metric_names,
            )
            return TPUEstimatorSpec(mode, predictions, loss, eval_metrics=metrics)
        optimizer = CrossShardOptimizer(training.make_optimizer())
        train_op = optimizer.minimize(loss, var_list=model.trainable_variables)
        train_metrics = training_metrics(training, counted, self.metric_names)
        train_metrics = of_layers.beside(train_metrics, self.metric_names)
        return TPUEstimatorSpec(
            mode, predictions, loss, train_op, train_metrics=train_metrics
        )

    def __getstate__(self) -> tuple[dict[str, Any], list[str]]:
        """Returns the fields, and properties that Keras does not pickle."""
        return fields_of(self), paths_of(self.keras_model)

    def __setstate__(self, state: tuple[dict[str, Any], list[str]]) -> None:
        """Restores the fields and those properties."""
        fields, paths = state
        vars(self).update(fields)
        give_paths(self.keras_model, paths)
        keep_on_host(self.keras_model)

    def __deepcopy__(self, memo: object) -> Self:
        """Returns itself, because it is immutable."""
        return self

    def trained_model(self, values: Mapping[str, TensorLike]) -> keras.Model:
        """Returns a compiled copy of `keras_model` with the trained values by path, of
        which those of the optimizer may be missing.
        """
        model = with_values(self.keras_model, values)
        self.training.recompile(model)
        slots = {v.path: v for v in model.optimizer.variables}
        for path in slots.keys() & values.keys():
            slots[path].assign(values[path])
        return model

    def copy_with(self, values: Mapping[str, TensorLike]) -> keras.Model:
        """Returns a copy of `keras_model` that is not compiled, with other values."""
        return with_values(self.keras_model, values)

    @property
    def inputs(self) -> dict[str, keras.KerasTensor] | None:
        """The model's symbolic inputs by name, or `None` if it has none."""
        inputs = getattr(self.keras_model, "inputs", None)
        if not inputs:
            return None
        input_structure = getattr(self.keras_model, "input", None)
        if isinstance(input_structure, Mapping):
            return dict(input_structure)
        return {tensor.name: tensor for tensor in inputs}

    def predictions(
        self, model: keras.Model, features: Features
    ) -> dict[str, jax.Array]:
        """Returns the predictions of PREDICT with a copy of `keras_model`."""
        features, _ = weighting.split(features)
        outputs = model(_inputs(model, features), training=False)
        return _named(model, outputs)

    def as_outputs(self, predictions: Mapping[str, TensorLike]) -> PyTree:
        """Returns predictions in the structure of the model's outputs."""
        model = self.keras_model
        structure = getattr(model, "output", None)
        if isinstance(structure, Mapping):
            return dict(predictions)
        # A model of a class has no structure; see `_names`.
        count = len(predictions)
        names = _names(model, [None] * count)
        if set(names) != predictions.keys():
            return dict(predictions)
        if count == 1 and not isinstance(structure, list | tuple):
            return predictions[names[0]]
        return [predictions[name] for name in names]


def _inputs(model: keras.Model, features: Features) -> Features:
    """Returns a model's inputs among features; a single tensor has any name."""
    structure = getattr(model, "input", None)
    if not isinstance(features, Mapping):
        return features
    if isinstance(structure, Mapping):
        return _in_structure(structure, features)
    inputs = getattr(model, "inputs", None) or ()
    if len(inputs) != 1 or len(features) != 1:
        return features
    (only,) = features.values()
    return only


def _in_structure(structure: PyTree, features: Features) -> Features:
    """Returns the features of a model's inputs, in their structure, because Keras reads
    inputs by their order. If any is missing, it returns all features to Keras's error.
    """
    paths = [path for path, _ in keras.tree.flatten_with_path(structure)]
    by_path = dict(keras.tree.flatten_with_path(features))
    if not by_path.keys() >= set(paths):
        return features
    return keras.tree.pack_sequence_as(structure, [by_path[path] for path in paths])


def _named(model: keras.Model, outputs: PyTree) -> dict[str, jax.Array]:
    """Returns outputs by name."""
    if isinstance(outputs, Mapping):
        leaves = dict(outputs)
    else:
        tensors = outputs if isinstance(outputs, list | tuple) else [outputs]
        leaves = dict(zip(_names(model, tensors), tensors, strict=True))
    if len(leaves) != len(jax.tree.leaves(outputs)):
        raise ValueError(
            "The outputs of a Keras model must be a tensor, or a list or "
            "dict of tensors with different names. Received: "
            f"{shown(outputs)}. Make a model whose outputs are a dict."
        )
    return leaves


def _names(model: keras.Model, tensors: Sequence[jax.Array | None]) -> list[str]:
    if isinstance(model, keras.Sequential):
        return [model.layers[-1].name]
    names = getattr(model, "output_names", None)
    return names or [f"output_{i}" for i, _ in enumerate(tensors, start=1)]
