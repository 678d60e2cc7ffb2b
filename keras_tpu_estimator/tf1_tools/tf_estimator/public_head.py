"""The class `tf.estimator.Head`, and heads with the losses of another one.

They have the losses and predictions of the other heads, metrics of Keras, and more
methods. A `train_op` contains only updates that are passed to them.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.tf1.reimplemented.estimator import MetricKeys
from keras_tpu_estimator.tf1.shims.resolving import resolve
from keras_tpu_estimator.tf1.spec import EstimatorSpec
from keras_tpu_estimator.tf1_tools.tf_estimator import heads
from keras_tpu_estimator.tf1_tools.tf_estimator.heads import LossSpec

_REDUCTIONS = {
    "auto": heads.MEAN,
    "sum": heads.SUM,
    "sum_over_batch_size": heads.MEAN,
}
Values = dict[str, dict[str, Any]]


class Head(heads.SpecHead):
    """The part of a model behind its logits."""

    @property
    @abc.abstractmethod
    def loss_reduction(self) -> str:
        """The reduction of the loss over the batch."""

    @abc.abstractmethod
    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Mapping[str, Any] | None = None,
        mode: str | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> Any:
        """Returns the loss of logits, plus other losses."""

    @abc.abstractmethod
    def predictions(
        self, logits: Any, keys: Sequence[str] | None = None
    ) -> dict[Any, Any]:
        """Returns the predictions, or those of some keys."""

    @abc.abstractmethod
    def metrics(
        self, regularization_losses: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        """Returns the metrics, which are objects of Keras, by name."""

    @abc.abstractmethod
    def update_metrics(
        self,
        eval_metrics: dict[str, Any],
        features: Mapping[str, Any],
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[Any] | None = None,
    ) -> dict[str, Any]:
        """Updates metrics with a batch, and returns them."""


class SuppliedHead(Head):
    """A head that makes its spec from its loss, predictions and metrics."""

    @abc.abstractmethod
    def _outputs(self, logits: Any) -> dict[str, Any]:
        """Returns the signatures of an export."""

    def create_estimator_spec(
        self,
        features: Mapping[str, Any],
        mode: str,
        logits: Any,
        labels: Any = None,
        optimizer: Any = None,
        trainable_variables: Sequence[Any] | None = None,
        train_op_fn: Callable[[Any], Any] | None = None,
        update_ops: Sequence[Any] | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> EstimatorSpec:
        """Returns the spec of a `model_fn`.

        Args:
            features: The features, which contain the weights.
            mode: A `ModeKeys`.
            logits: Shape `[batch, ..., logits_dimension]`.
            labels: The labels; required except in PREDICT.
            optimizer: A Keras or `tf.train` optimizer that minimizes the loss in TRAIN.
            trainable_variables: The variables to train. Required with a Keras
                optimizer.
            train_op_fn: Returns the train op of a loss, in place of `optimizer`.
            update_ops: Operations to run in each training step.
            regularization_losses: Losses to add.

        Raises:
            ValueError: The labels, weights or logits have another shape, or not exactly
                one of `optimizer` and `train_op_fn` is given in TRAIN.
        """
        with tf.name_scope(self.name or "head"):
            predictions = self.predictions(logits)
            if mode == ModeKeys.PREDICT:
                outputs = self._outputs(logits)
                return EstimatorSpec(mode, predictions, export_outputs=outputs)
            loss = self.loss(labels, logits, features, mode, regularization_losses)
            if mode == ModeKeys.EVAL:
                metrics = self.update_metrics(
                    self.metrics(regularization_losses),
                    features,
                    logits,
                    labels,
                    regularization_losses,
                )
                return EstimatorSpec(mode, predictions, loss, eval_metric_ops=metrics)
        with tf.name_scope(""):
            train_op = _train_op(loss, optimizer, trainable_variables, train_op_fn)
            if update_ops is not None:
                train_op = tf.group(train_op, *update_ops)
            self._add_parts(features, logits, labels)
            tf.summary.scalar(self._summary_key(MetricKeys.LOSS), loss)
            if regularization_losses is not None:
                key = self._summary_key(MetricKeys.LOSS_REGULARIZATION)
                tf.summary.scalar(key, tf.add_n(regularization_losses))
        return EstimatorSpec(mode, predictions, loss, train_op)

    def _add_parts(self, features: Any, logits: Any, labels: Any) -> None:
        """Adds the summaries of the heads that this one consists of."""
        del features, logits, labels

    def _summary_key(self, name: str) -> str:
        return self._key(name)

    def _key(self, name: str) -> str:
        return f"{name}/{self.name}" if self.name else name


class SingleHead(SuppliedHead):
    """A head with the losses and predictions of another one."""

    def __init__(self, head: heads.Head, loss_reduction: str):
        self._head, self._reduction = head, loss_reduction

    @property
    def name(self) -> str | None:
        """The suffix of the names of metrics and summaries."""
        return self._head.name

    @property
    def logits_dimension(self) -> int:
        """The size of the last axis of the logits."""
        return self._head.logits_dimension

    @property
    def loss_reduction(self) -> str:
        """The reduction of the loss over the batch."""
        return self._reduction

    @abc.abstractmethod
    def _metrics(self, keras: Any) -> dict[str, Any]:
        """Returns the metrics of this head by their names without the suffix."""

    @abc.abstractmethod
    def _values(self, loss: LossSpec, predictions: Mapping[str, Any]) -> Values:
        """Returns the arguments that update each metric."""

    def loss(  # noqa: D102 - as in the base class
        self,
        labels: Any,
        logits: Any,
        features: Mapping[str, Any] | None = None,
        mode: str | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> Any:
        total = self._loss(labels, logits, features or {}).training_loss
        if regularization_losses is not None:
            total += tf.add_n(regularization_losses)
        return total

    def _loss(self, labels: Any, logits: Any, features: Mapping[str, Any]) -> LossSpec:
        logits = heads.checked_logits(logits, self.logits_dimension)
        return self._head.create_loss(features, ModeKeys.EVAL, logits, labels)

    def predictions(  # noqa: D102 - as in the base class
        self, logits: Any, keys: Sequence[str] | None = None
    ) -> dict[Any, Any]:
        logits = heads.checked_logits(logits, self.logits_dimension)
        with tf.name_scope("predictions"):
            predictions = self._head._predictions(logits)
        unknown = [key for key in keys or () if key not in predictions]
        if unknown:
            raise ValueError(
                f"`keys` must be some of {[*predictions]}. Received: {unknown}. "
                "Remove the others."
            )
        return {key: predictions[key] for key in keys} if keys else predictions

    def _outputs(self, logits: Any) -> dict[str, Any]:
        return self._head._export_outputs(self.predictions(logits))

    def metrics(  # noqa: D102 - as in the base class
        self, regularization_losses: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        keras = resolve("keras.metrics")
        with tf.name_scope("metrics"):
            metrics = {MetricKeys.LOSS_MEAN: keras.Mean(), **self._metrics(keras)}
            if regularization_losses is not None:
                metrics[MetricKeys.LOSS_REGULARIZATION] = keras.Mean()
        return {self._key(name): metric for name, metric in metrics.items()}

    def update_metrics(  # noqa: D102 - as in the base class
        self,
        eval_metrics: dict[str, Any],
        features: Mapping[str, Any],
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[Any] | None = None,
    ) -> dict[str, Any]:
        loss = self._loss(labels, logits, features)
        values = {
            MetricKeys.LOSS_MEAN: mean(loss.unreduced_loss, loss.weights),
            **self._values(loss, self.predictions(logits)),
        }
        if regularization_losses is not None:
            added = tf.add_n(regularization_losses)
            values[MetricKeys.LOSS_REGULARIZATION] = {"values": added}
        for name, arguments in values.items():
            eval_metrics[self._key(name)].update_state(**arguments)
        return eval_metrics


def reduction_of(name: str) -> str:
    """Returns the reduction of other heads."""
    if name not in _REDUCTIONS:
        raise ValueError(
            f"`loss_reduction` must be one of {[*_REDUCTIONS]}. Received: {name!r}. "
            "Use 'sum' or leave it out."
        )
    return _REDUCTIONS[name]


def _train_op(
    loss: Any,
    optimizer: Any,
    variables: Sequence[Any] | None,
    train_op_fn: Callable[[Any], Any] | None,
) -> Any:
    """Returns the train op of a Keras or `tf.train` optimizer, or of a function."""
    is_of_keras = optimizer is not None and not isinstance(
        optimizer, tf.train.Optimizer
    )
    if not is_of_keras or train_op_fn is not None:
        return heads.train_op_of(loss, optimizer, train_op_fn, updates=())
    if not variables or not isinstance(variables, (list, tuple)):
        raise ValueError(
            "`trainable_variables` must be a list of variables with a Keras optimizer. "
            f"Received: {variables!r}. Pass tf.trainable_variables()."
        )
    return optimizer.get_updates(loss, variables)[0]


def pair(labels: Any, predictions: Any, weights: Any) -> dict[str, Any]:
    """Returns the arguments of a metric of labels and predictions."""
    return {"y_true": labels, "y_pred": predictions, "sample_weight": weights}


def mean(values: Any, weights: Any) -> dict[str, Any]:
    """Returns the arguments of a mean."""
    weights = tf.broadcast_to(weights, tf.shape(values))
    return {"values": values, "sample_weight": weights}
