"""The heads of `tf.estimator`: `BinaryClassHead` to `MultiHead`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.tf1.reimplemented.estimator import MetricKeys, PredictionKeys
from keras_tpu_estimator.tf1.shims.resolving import resolve
from keras_tpu_estimator.tf1_tools.tf_estimator import (
    class_heads,
    head_functions,
    multi_head,
)
from keras_tpu_estimator.tf1_tools.tf_estimator.heads import LossSpec
from keras_tpu_estimator.tf1_tools.tf_estimator.public_head import (
    Head,
    SingleHead,
    SuppliedHead,
    Values,
    mean,
    pair,
    reduction_of,
)

_MEAN = "sum_over_batch_size"


class BinaryClassHead(SingleHead):
    """The head of two classes with one logit.

    Args:
        weight_column: As in `heads.Head`.
        thresholds: As in `class_heads.BinaryClassHead`.
        label_vocabulary: See there.
        loss_reduction: 'sum', or 'sum_over_batch_size', which is the default.
        loss_fn: As in `heads.Head`.
        name: See there.
    """

    def __init__(
        self,
        weight_column: Any = None,
        thresholds: Sequence[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = _MEAN,
        loss_fn: Callable[..., Any] | None = None,
        name: str | None = None,
    ):
        self._thresholds = tuple(thresholds or ())
        head = head_functions.binary_classification_head(
            weight_column,
            self._thresholds,
            label_vocabulary,
            reduction_of(loss_reduction),
            loss_fn,
            name,
        )
        super().__init__(head, loss_reduction)

    def _metrics(self, keras: Any) -> dict[str, Any]:
        return {
            MetricKeys.ACCURACY: keras.Accuracy(),
            MetricKeys.PRECISION: keras.Precision(),
            MetricKeys.RECALL: keras.Recall(),
            MetricKeys.PREDICTION_MEAN: keras.Mean(),
            MetricKeys.LABEL_MEAN: keras.Mean(),
            MetricKeys.ACCURACY_BASELINE: _baseline(keras),
            MetricKeys.AUC: keras.AUC(),
            MetricKeys.AUC_PR: keras.AUC(curve="PR"),
            **_at_thresholds(keras, self._thresholds),
        }

    def _values(self, loss: LossSpec, predictions: Mapping[str, Any]) -> Values:
        labels, weights = loss.processed_labels, loss.weights
        logistic = predictions[PredictionKeys.LOGISTIC]
        classes = pair(labels, predictions[PredictionKeys.CLASS_IDS], weights)
        scores = pair(labels, logistic, weights)
        return {
            MetricKeys.ACCURACY: classes,
            MetricKeys.PRECISION: classes,
            MetricKeys.RECALL: classes,
            MetricKeys.PREDICTION_MEAN: mean(logistic, weights),
            MetricKeys.LABEL_MEAN: mean(labels, weights),
            MetricKeys.ACCURACY_BASELINE: mean(labels, weights),
            MetricKeys.AUC: scores,
            MetricKeys.AUC_PR: scores,
            **dict.fromkeys(_names_at(self._thresholds), scores),
        }


class MultiClassHead(SingleHead):
    """The head of three or more classes with one logit for each.

    Args:
        n_classes: The number of classes.
        weight_column: As in `heads.Head`.
        label_vocabulary: As in `class_heads.MultiClassHead`.
        loss_reduction: 'sum', or 'sum_over_batch_size', which is the default.
        loss_fn: As in `heads.Head`.
        name: See there.
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = _MEAN,
        loss_fn: Callable[..., Any] | None = None,
        name: str | None = None,
    ):
        reduction = reduction_of(loss_reduction)
        head = head_functions.multi_class_head(
            n_classes, weight_column, label_vocabulary, reduction, loss_fn, name
        )
        super().__init__(head, loss_reduction)

    def _metrics(self, keras: Any) -> dict[str, Any]:
        return {MetricKeys.ACCURACY: keras.Accuracy()}

    def _values(self, loss: LossSpec, predictions: Mapping[str, Any]) -> Values:
        classes = predictions[PredictionKeys.CLASS_IDS]
        return {MetricKeys.ACCURACY: pair(loss.processed_labels, classes, loss.weights)}


class MultiLabelHead(SingleHead):
    """The head of classes of which an example may have any number.

    Args:
        n_classes: The number of classes.
        weight_column: As in `heads.Head`.
        thresholds: As in `class_heads.MultiLabelHead`.
        label_vocabulary: See there.
        loss_reduction: 'sum', or 'sum_over_batch_size', which is the default.
        loss_fn: As in `heads.Head`.
        classes_for_class_based_metrics: As in `class_heads.MultiLabelHead`.
        name: As in `heads.Head`.
    """

    _head: class_heads.MultiLabelHead

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        thresholds: Sequence[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = _MEAN,
        loss_fn: Callable[..., Any] | None = None,
        classes_for_class_based_metrics: Sequence[Any] | None = None,
        name: str | None = None,
    ):
        self._thresholds = tuple(thresholds or ())
        head = head_functions.multi_label_head(
            n_classes,
            weight_column,
            self._thresholds,
            label_vocabulary,
            reduction_of(loss_reduction),
            loss_fn,
            classes_for_class_based_metrics,
            name,
        )
        super().__init__(head, loss_reduction)

    def _metrics(self, keras: Any) -> dict[str, Any]:
        metrics = {
            MetricKeys.AUC: keras.AUC(),
            MetricKeys.AUC_PR: keras.AUC(curve="PR"),
            **_at_thresholds(keras, self._thresholds),
        }
        for number in self._head.class_numbers():
            named, auc, auc_pr = self._head.class_metric_names(number)
            metrics |= {
                named: keras.Mean(),
                auc: keras.AUC(),
                auc_pr: keras.AUC(curve="PR"),
            }
        return metrics

    def _values(self, loss: LossSpec, predictions: Mapping[str, Any]) -> Values:
        labels, weights = loss.processed_labels, loss.weights
        scores = predictions[PredictionKeys.PROBABILITIES]
        names = (MetricKeys.AUC, MetricKeys.AUC_PR, *_names_at(self._thresholds))
        values = dict.fromkeys(names, pair(labels, scores, weights))
        for number in self._head.class_numbers():
            named, auc, auc_pr = self._head.class_metric_names(number)
            score = scores[..., number : number + 1]
            state = pair(labels[..., number : number + 1], score, weights)
            values |= {named: mean(score, weights), auc: state, auc_pr: state}
        return values


class RegressionHead(SingleHead):
    """The head of numbers, trained with the squared error.

    Args:
        label_dimension: The number of labels of an example.
        weight_column: As in `heads.Head`.
        loss_reduction: 'sum', or 'sum_over_batch_size', which is the default.
        loss_fn: As in `heads.Head`.
        inverse_link_fn: As in `heads.RegressionHead`.
        name: As in `heads.Head`.
    """

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = _MEAN,
        loss_fn: Callable[..., Any] | None = None,
        inverse_link_fn: Callable[[Any], Any] | None = None,
        name: str | None = None,
    ):
        head = head_functions.regression_head(
            weight_column,
            label_dimension,
            reduction_of(loss_reduction),
            loss_fn,
            inverse_link_fn,
            name,
        )
        super().__init__(head, loss_reduction)

    def _metrics(self, keras: Any) -> dict[str, Any]:
        names = MetricKeys.PREDICTION_MEAN, MetricKeys.LABEL_MEAN
        return {name: keras.Mean() for name in names}

    def _values(self, loss: LossSpec, predictions: Mapping[str, Any]) -> Values:
        predicted = predictions[PredictionKeys.PREDICTIONS]
        return {
            MetricKeys.PREDICTION_MEAN: mean(predicted, loss.weights),
            MetricKeys.LABEL_MEAN: mean(loss.processed_labels, loss.weights),
        }


class PoissonRegressionHead(RegressionHead):
    """The head of counts, whose logits are logarithms of the predictions.

    Args:
        label_dimension: The number of labels of an example.
        weight_column: As in `heads.Head`.
        loss_reduction: 'sum', or 'sum_over_batch_size', which is the default.
        compute_full_loss: As in `head_functions.poisson_regression_head`.
        name: As in `heads.Head`.
    """

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = _MEAN,
        compute_full_loss: bool = True,
        name: str | None = None,
    ):
        reduction = reduction_of(loss_reduction)
        head = head_functions.poisson_regression_head(
            weight_column, label_dimension, reduction, compute_full_loss, name
        )
        SingleHead.__init__(self, head, loss_reduction)


class LogisticRegressionHead(RegressionHead):
    """The head of probabilities.

    Args:
        weight_column: As in `heads.Head`.
        loss_reduction: 'sum', or 'sum_over_batch_size', which is the default.
        name: As in `heads.Head`.
    """

    def __init__(
        self,
        weight_column: Any = None,
        loss_reduction: str = _MEAN,
        name: str | None = None,
    ):
        reduction = reduction_of(loss_reduction)
        head = head_functions.logistic_regression_head(weight_column, reduction, name)
        SingleHead.__init__(self, head, loss_reduction)


class MultiHead(SuppliedHead):
    """Several heads, whose labels and logits are dicts by the names of the heads.

    Args:
        heads: Heads with different names. An export serves the first by default.
        head_weights: The factors of the losses. Defaults to equal ones.
    """

    def __init__(
        self, heads: Sequence[Head], head_weights: Sequence[float] | None = None
    ):
        multi_head.check_heads(heads, head_weights)
        self._heads = tuple(heads)
        self._weights = tuple(head_weights or [1.0] * len(self._heads))

    @property
    def name(self) -> str:
        """The names of all heads."""
        return "_".join(str(head.name) for head in self._heads)

    @property
    def logits_dimension(self) -> int:
        """The size of the last axis of the logits of all heads together."""
        return sum(head.logits_dimension for head in self._heads)

    @property
    def loss_reduction(self) -> str:
        """The reduction of the losses over the batch, which all heads share."""
        reductions = sorted({head.loss_reduction for head in self._heads})
        if len(reductions) > 1:
            raise ValueError(
                "All heads must have the same `loss_reduction`. Received: "
                f"{reductions}. Pass one of them to each head."
            )
        return reductions[0]

    def loss(  # noqa: D102 - as in the base class
        self,
        labels: Any,
        logits: Any,
        features: Mapping[str, Any] | None = None,
        mode: str | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> Any:
        parts = multi_head.split_logits(self._heads, logits)
        multi_head.check_labels(self._heads, labels, ModeKeys.TRAIN)
        losses = [
            factor
            * head.loss(
                labels=labels[head.name],
                logits=parts[head.name],
                features=features,
                mode=mode,
            )
            for head, factor in zip(self._heads, self._weights, strict=True)
        ]
        return tf.add_n([*losses, *(regularization_losses or ())])

    def predictions(  # noqa: D102 - as in the base class
        self, logits: Any, keys: Sequence[str] | None = None
    ) -> dict[Any, Any]:
        parts = multi_head.split_logits(self._heads, logits)
        return {
            (head.name, key): value
            for head in self._heads
            for key, value in head.predictions(logits=parts[head.name]).items()
        }

    def _outputs(self, logits: Any) -> dict[str, Any]:
        parts = multi_head.split_logits(self._heads, logits)
        specs = {
            str(head.name): head.create_estimator_spec(
                features={}, mode=ModeKeys.PREDICT, logits=parts[head.name]
            )
            for head in self._heads
        }
        return multi_head.merged_outputs(specs)

    def _add_parts(self, features: Any, logits: Any, labels: Any) -> None:
        parts = multi_head.split_logits(self._heads, logits)
        for head in self._heads:
            head.create_estimator_spec(
                features=features,
                mode=ModeKeys.TRAIN,
                logits=parts[head.name],
                labels=labels[head.name],
                train_op_fn=multi_head.no_train_op,
            )

    def _summary_key(self, name: str) -> str:
        return name

    def metrics(  # noqa: D102 - as in the base class
        self, regularization_losses: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        names = [f"{MetricKeys.LOSS}/{head.name}" for head in self._heads]
        if regularization_losses is not None:
            names.append(self._key(MetricKeys.LOSS_REGULARIZATION))
        return {name: resolve("keras.metrics").Mean() for name in names}

    def update_metrics(  # noqa: D102 - as in the base class
        self,
        eval_metrics: dict[str, Any],
        features: Mapping[str, Any],
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[Any] | None = None,
    ) -> dict[str, Any]:
        parts = multi_head.split_logits(self._heads, logits)
        multi_head.check_labels(self._heads, labels, ModeKeys.EVAL)
        if regularization_losses is not None:
            added = tf.add_n(regularization_losses)
            key = self._key(MetricKeys.LOSS_REGULARIZATION)
            eval_metrics[key].update_state(added)
        for head in self._heads:
            loss = head.loss(
                labels=labels[head.name], logits=parts[head.name], features=features
            )
            eval_metrics[f"{MetricKeys.LOSS}/{head.name}"].update_state(loss)
            eval_metrics |= head.update_metrics(
                head.metrics(), features, parts[head.name], labels[head.name]
            )
        return eval_metrics


def _baseline(keras: Any) -> Any:
    """Returns the accuracy of the most frequent class, as a metric of labels."""

    class AccuracyBaseline(keras.Mean):
        def result(self) -> Any:
            mean = super().result()
            return tf.maximum(mean, 1 - mean)

    return AccuracyBaseline()


def _names_at(thresholds: Sequence[float]) -> list[str]:
    kinds = (
        MetricKeys.ACCURACY_AT_THRESHOLD,
        MetricKeys.PRECISION_AT_THRESHOLD,
        MetricKeys.RECALL_AT_THRESHOLD,
    )
    return [kind % threshold for threshold in thresholds for kind in kinds]


def _at_thresholds(keras: Any, thresholds: Sequence[float]) -> dict[str, Any]:
    """Returns accuracy, precision and recall at thresholds."""
    metrics = {}
    for threshold in thresholds:
        accuracy, precision, recall = _names_at([threshold])
        metrics[accuracy] = keras.BinaryAccuracy(threshold=threshold)
        metrics[precision] = keras.Precision(thresholds=threshold)
        metrics[recall] = keras.Recall(thresholds=threshold)
    return metrics
