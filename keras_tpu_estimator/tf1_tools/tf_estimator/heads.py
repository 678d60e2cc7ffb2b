"""Heads of TF1 estimators: the loss, metrics, predictions and signatures of logits."""

import abc
import dataclasses
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.api.model_fn.export_outputs import (
    ExportOutput,
    PredictOutput,
    RegressionOutput,
)
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.params import argument_names
from keras_tpu_estimator.tf1.reimplemented.estimator import MetricKeys, PredictionKeys
from keras_tpu_estimator.tf1.spec import EstimatorSpec

_Metrics = dict[str, tuple[tf.Tensor, tf.Tensor]]
MEAN = tf.losses.Reduction.SUM_OVER_BATCH_SIZE
SUM = tf.losses.Reduction.SUM


class LossSpec(NamedTuple):
    """The loss of a head.

    Attributes:
        training_loss: The reduced loss.
        unreduced_loss: The loss of each label, with the rank of the logits.
        weights: The weights of the examples, with the rank of the logits, or 1.0.
        processed_labels: The labels as numbers, with the rank of the logits.
    """

    training_loss: Any
    unreduced_loss: Any
    weights: Any
    processed_labels: Any


class SpecHead(abc.ABC):
    """The methods that all heads of programs have."""

    @property
    @abc.abstractmethod
    def name(self) -> str | None:
        """The suffix of the names of metrics and summaries."""

    @property
    @abc.abstractmethod
    def logits_dimension(self) -> int:
        """The size of the last axis of the logits."""

    def create_estimator_spec(self, *args: Any, **kwargs: Any) -> EstimatorSpec:
        """Returns the spec of a `model_fn`.

        It calls `_create_tpu_estimator_spec`, unless a subclass overrides it.
        """
        spec = self._create_tpu_estimator_spec(*args, **kwargs)
        return spec.as_estimator_spec()

    def _create_tpu_estimator_spec(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__} must define `create_estimator_spec`. Define it, or "
            "`_create_tpu_estimator_spec`."
        )


class BaseHead(SpecHead):
    """The base class of the heads of programs, which `canned.head` had as `_Head`."""

    @abc.abstractmethod
    def create_loss(self, features: Any, mode: str, logits: Any, labels: Any) -> Any:
        """Returns the loss of logits, as a `LossSpec`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head(BaseHead):
    """The part of a model behind its logits.

    Attributes:
        weight_column: The weights of examples: the key of a feature, or a numeric
            column. `None` means equal weights.
        loss_reduction: A `tf.losses.Reduction`, except `NONE`.
        loss_fn: A function of `labels`, `logits` and, if it has the argument,
            `features`. It returns the loss of each label. `None` means the usual loss.
        name: A suffix of the names of metrics and summaries.
    """

    weight_column: Any = None
    loss_reduction: str = MEAN
    loss_fn: Callable[..., Any] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        reductions = sorted(set(tf.losses.Reduction.all()) - {tf.losses.Reduction.NONE})
        if self.loss_reduction not in reductions:
            raise ValueError(
                f"`loss_reduction` must be one of {reductions}. Received: "
                f"{self.loss_reduction!r}. Use tf.losses.Reduction.SUM."
            )
        if self.loss_fn is not None:
            _check_loss_arguments(argument_names(self.loss_fn))

    @property
    def _label_dimension(self) -> int:
        """The size of the last axis of the labels."""
        return 1

    @property
    def _loss_dimension(self) -> int:
        """The size of the last axis of the losses, and the largest of the weights."""
        return self._label_dimension

    def _dense(self, labels: Any) -> Any:
        """Returns sparse labels of a head that supports them as a dense tensor."""
        return labels

    @abc.abstractmethod
    def _numbers(self, labels: Any) -> Any:
        """Returns labels as numbers."""

    @abc.abstractmethod
    def _losses(self, labels: Any, logits: Any) -> Any:
        """Returns the usual loss of each label."""

    @abc.abstractmethod
    def _predictions(self, logits: Any) -> dict[str, Any]:
        """Returns the predictions."""

    @abc.abstractmethod
    def _metrics(self, loss: LossSpec, predictions: Mapping[str, Any]) -> _Metrics:
        """Returns the metrics by their names without the suffix."""

    @abc.abstractmethod
    def _export_outputs(self, predictions: dict[str, Any]) -> dict[str, ExportOutput]:
        """Returns the signatures of an export."""

    def create_loss(
        self, features: Mapping[str, Any], mode: str, logits: Any, labels: Any
    ) -> LossSpec:
        """Returns the loss of logits.

        Args:
            features: The features, which contain the weights.
            mode: A `ModeKeys`; has no effect.
            logits: Shape `[batch, ..., logits_dimension]`.
            labels: Shape `[batch, ..., label_dimension]`, or without the last axis.

        Raises:
            ValueError: The labels or weights are missing or have another shape, or the
                losses of `loss_fn` have.
        """
        del mode
        logits = tf.cast(logits, tf.float32)
        labels = self._dense(labels)
        targets = self._numbers(_labels(labels, logits, self._label_dimension))
        if self.loss_fn is None:
            losses = self._losses(targets, logits)
        else:
            has_features = "features" in argument_names(self.loss_fn)
            options = {"features": features} if has_features else {}
            losses = self.loss_fn(labels=targets, logits=logits, **options)
            _check_losses(losses, logits, self._loss_dimension)
        weights = _weights(features, self.weight_column, logits, self._loss_dimension)
        total = tf.losses.compute_weighted_loss(
            losses, weights, reduction=self.loss_reduction
        )
        return LossSpec(total, losses, weights, targets)

    def create_estimator_spec(
        self,
        features: Mapping[str, Any],
        mode: str,
        logits: Any,
        labels: Any = None,
        optimizer: Any = None,
        train_op_fn: Callable[[Any], Any] | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> EstimatorSpec:
        """Returns the spec of a `model_fn`.

        Args:
            features: The features, which contain the weights.
            mode: A `ModeKeys`.
            logits: Shape `[batch, ..., logits_dimension]`.
            labels: The labels; required except in PREDICT.
            optimizer: A `tf.train.Optimizer` that minimizes the loss in TRAIN.
            train_op_fn: Returns the train op of a loss, in place of `optimizer`.
            regularization_losses: Losses to add.

        Raises:
            ValueError: The labels, weights or logits have another shape, or not exactly
                one of `optimizer` and `train_op_fn` is given in TRAIN.
        """
        with tf.name_scope(self.name or "head"):
            logits = checked_logits(logits, self.logits_dimension)
            with tf.name_scope("predictions"):
                predictions = self._predictions(logits)
            if mode == ModeKeys.PREDICT:
                outputs = self._export_outputs(predictions)
                return EstimatorSpec(mode, predictions, export_outputs=outputs)
            loss = self.create_loss(features, mode, logits, labels)
            added = tf.add_n(regularization_losses) if regularization_losses else None
            total = loss.training_loss if added is None else loss.training_loss + added
            if mode == ModeKeys.EVAL:
                with tf.name_scope("metrics"):
                    metrics = self._metrics(loss, predictions)
                    if added is not None:
                        metrics[MetricKeys.LOSS_REGULARIZATION] = tf.metrics.mean(added)
                named = {self._key(name): metric for name, metric in metrics.items()}
                return EstimatorSpec(mode, predictions, total, eval_metric_ops=named)
            train_op = train_op_of(total, optimizer, train_op_fn)
            mean = None
            if self.loss_reduction == SUM:
                weights = loss.weights * tf.ones_like(loss.unreduced_loss)
                mean = loss.training_loss / tf.reduce_sum(weights)
        summaries = {
            MetricKeys.LOSS: total,
            MetricKeys.LOSS_MEAN: mean,
            MetricKeys.LOSS_REGULARIZATION: added,
        }
        with tf.name_scope(""):
            for name, value in summaries.items():
                if value is not None:
                    tf.summary.scalar(self._key(name), value)
        return EstimatorSpec(mode, predictions, total, train_op)

    def _key(self, name: str) -> str:
        return f"{name}/{self.name}" if self.name else name


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionHead(Head):
    """The head of numbers, trained with the squared error.

    Attributes:
        label_dimension: The number of labels of an example.
        inverse_link_fn: Returns the predictions of logits. `None` means the logits.
    """

    label_dimension: int = 1
    inverse_link_fn: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        is_count = isinstance(self.label_dimension, numbers.Integral)
        if not is_count or self.label_dimension < 1:
            raise ValueError(
                "`label_dimension` must be a positive integer. Received: "
                f"{self.label_dimension!r}. Pass the number of labels of an example."
            )

    @property
    def logits_dimension(self) -> int:
        """The size of the last axis of the logits."""
        return self.label_dimension

    @property
    def _label_dimension(self) -> int:
        return self.label_dimension

    def _numbers(self, labels: Any) -> Any:
        return tf.cast(labels, tf.float32)

    def _losses(self, labels: Any, logits: Any) -> Any:
        return tf.math.squared_difference(logits, labels)

    def _predictions(self, logits: Any) -> dict[str, Any]:
        if self.inverse_link_fn is None:
            return {PredictionKeys.PREDICTIONS: logits}
        return {
            PredictionKeys.PREDICTIONS: self.inverse_link_fn(logits),
            PredictionKeys.LOGITS: logits,
        }

    def _metrics(self, loss: LossSpec, predictions: Mapping[str, Any]) -> _Metrics:
        values = {
            MetricKeys.LOSS_MEAN: loss.unreduced_loss,
            MetricKeys.PREDICTION_MEAN: predictions[PredictionKeys.PREDICTIONS],
            MetricKeys.LABEL_MEAN: loss.processed_labels,
        }
        return {
            name: tf.metrics.mean(value, loss.weights) for name, value in values.items()
        }

    def _export_outputs(self, predictions: dict[str, Any]) -> dict[str, ExportOutput]:
        regression = RegressionOutput(predictions[PredictionKeys.PREDICTIONS])
        return {
            "serving_default": regression,
            "regression": regression,
            "predict": PredictOutput(predictions),
        }


def _labels(labels: Any, logits: Any, size: int) -> Any:
    """Returns labels with the rank of the logits."""
    if labels is None or isinstance(labels, tf.SparseTensor):
        received = "no labels" if labels is None else "a tf.SparseTensor"
        raise ValueError(
            f"Labels must be a tensor of shape [batch, ..., {size}]. Received: "
            f"{received}. Return a pair of features and labels from input_fn."
        )
    labels = _with_last_axis(tf.convert_to_tensor(labels), logits)
    sizes = _sizes(logits, size)
    if not labels.shape.is_compatible_with(sizes):
        raise ValueError(
            f"Labels must have the shape [batch, ..., {size}]. Received labels of "
            f"shape {labels.shape} for logits of shape {logits.shape}. Change the "
            "labels, n_classes or label_dimension."
        )
    return _of_rank(_of_shape(labels, sizes), logits, size)


def _with_last_axis(values: Any, logits: Any) -> Any:
    """Returns labels or weights with the rank of the logits, if both are known."""
    ranks = values.shape.ndims, logits.shape.ndims
    if None not in ranks and ranks[0] == ranks[1] - 1:
        return values[..., None]
    return values


def _sizes(logits: Any, last: int | None) -> tf.TensorShape:
    """Returns the sizes of values with the rank of the logits and a last axis."""
    if logits.shape.ndims is None:
        return tf.TensorShape(None)
    return tf.TensorShape([*[None] * (logits.shape.ndims - 1), last])


def _of_rank(values: Any, logits: Any, size: int) -> Any:
    """Returns values with a last size, if the logits have an unknown rank."""
    if logits.shape.ndims is not None:
        return values
    return tf.reshape(values, tf.concat([tf.shape(logits)[:-1], [size]], 0))


def _of_shape(values: Any, sizes: tf.TensorShape) -> Any:
    """Returns values that are checked as the program runs, where sizes are unknown."""
    is_known = str(values.shape) == str(values.shape.merge_with(sizes))
    return values if is_known else tf.ensure_shape(values, sizes)


def _check_loss_arguments(names: Sequence[str]) -> None:
    """Raises an error if a loss function does not take the arguments of a head."""
    accepted = {"labels", "logits", "features", "loss_reduction"}
    if not {"labels", "logits"} <= {*names} <= accepted:
        raise ValueError(
            "`loss_fn` must have the arguments `labels` and `logits`, and can have "
            f"`features`. Received: {sorted(names)}. Change its arguments."
        )


def _check_losses(losses: Any, logits: Any, size: int) -> None:
    """Raises an error if the losses of a function have another shape."""
    sizes = _sizes(logits, size)
    if sizes.ndims is not None:
        sizes = logits.shape[:-1].concatenate(size)
    if not losses.shape.is_compatible_with(sizes):
        raise ValueError(
            f"The losses of `loss_fn` must have the shape [batch, ..., {size}], which "
            f"is {sizes}. Received: {losses.shape}. Return one loss for each label."
        )


def checked_logits(logits: Any, size: int) -> Any:
    """Returns logits as float32, after a check of their shape."""
    logits = tf.cast(logits, tf.float32)
    sizes = _sizes(logits, size)
    if logits.shape.ndims in (0, 1) or not logits.shape.is_compatible_with(sizes):
        raise ValueError(
            f"Logits must have the shape [batch, ..., {size}]. Received: "
            f"{logits.shape}. Use a last layer of {size} units."
        )
    return _of_rank(_of_shape(logits, sizes), logits, size)


def _weights(features: Mapping[str, Any], column: Any, logits: Any, size: int) -> Any:
    """Returns the weights of examples or labels with the rank of the logits, or 1.0."""
    if column is None:
        return 1.0
    if isinstance(column, str):
        column = tf.feature_column.numeric_column(column)
    if not hasattr(column, "normalizer_fn"):
        raise TypeError(
            "`weight_column` must be the key of a feature, or a numeric column. "
            f"Received: {column!r}. Use tf.feature_column.numeric_column."
        )
    if column.key not in features:
        raise ValueError(
            f"`weight_column` must be the key of a feature. Received: {column.key!r}, "
            f"and features {sorted(features)}. Return the weights from input_fn."
        )
    weights = features[column.key]
    if column.normalizer_fn is not None:
        weights = column.normalizer_fn(weights)
    weights = tf.cast(weights, tf.float32)
    weights = _with_last_axis(weights, logits)
    sizes = _sizes(logits, None)
    last = weights.shape[-1] if weights.shape.ndims else None
    shape = logits.shape if sizes.ndims is None else logits.shape[:-1].concatenate(last)
    if not weights.shape.is_compatible_with(shape) or last not in (None, 1, size):
        raise ValueError(
            "Weights must have the shape [batch, ...] or [batch, ..., 1]. Received "
            f"weights of shape {weights.shape} for logits of shape {logits.shape}. "
            f"Change the feature {column.key!r}."
        )
    return _of_shape(weights, sizes)


def train_op_of(
    loss: Any,
    optimizer: Any,
    train_op_fn: Callable[[Any], Any] | None,
    updates: Sequence[Any] | None = None,
) -> Any:
    """Returns the train op, with the updates of layers, such as moving averages."""
    if (optimizer is None) == (train_op_fn is None):
        raise ValueError(
            "Training needs either `optimizer` or `train_op_fn`. Received: "
            f"optimizer={optimizer!r}, train_op_fn={train_op_fn!r}. Pass one of them."
        )
    if train_op_fn is not None:
        train_op = train_op_fn(loss)
    else:
        train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    if updates is None:
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    return tf.group(train_op, *updates) if updates else train_op
