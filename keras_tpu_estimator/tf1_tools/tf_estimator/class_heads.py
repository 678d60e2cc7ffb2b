"""Heads of TF1 estimators whose labels are classes."""

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.api.model_fn.export_outputs import (
    ClassificationOutput,
    ExportOutput,
    PredictOutput,
    RegressionOutput,
)
from keras_tpu_estimator.tf1.reimplemented.estimator import MetricKeys, PredictionKeys
from keras_tpu_estimator.tf1_tools.tf_estimator.heads import Head, LossSpec

_Metrics = dict[str, tuple[tf.Tensor, tf.Tensor]]
_NO_CLASS = -(2**20)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ClassHead(Head):
    """A head whose labels are classes.

    Attributes:
        n_classes: The number of classes.
        label_vocabulary: The classes, if labels are strings.
    """

    n_classes: int = dataclasses.field(kw_only=False)
    label_vocabulary: Sequence[str] | None = None

    def _numbers(self, labels: Any) -> Any:
        if self.label_vocabulary is None:
            return labels
        if labels.dtype != tf.string:
            raise ValueError(
                "With `label_vocabulary`, labels must be strings. Received labels of "
                f"dtype {labels.dtype.name}. Leave `label_vocabulary` out."
            )
        words = tf.constant(list(self.label_vocabulary))
        table = tf.lookup.KeyValueTensorInitializer(
            words, tf.range(len(self.label_vocabulary), dtype=tf.int64)
        )
        return tf.lookup.StaticHashTable(table, -1).lookup(labels)

    def _class_predictions(self, logits: Any) -> dict[str, Any]:
        """Returns the predictions of one logit for each class."""
        class_ids = tf.argmax(logits, axis=-1)[..., None]
        ids = tf.range(self.n_classes)
        if self.label_vocabulary is None:
            classes = tf.as_string(class_ids)
        else:
            classes = tf.gather(tf.constant(list(self.label_vocabulary)), class_ids)
        rows = [tf.shape(logits)[0], 1]
        return {
            PredictionKeys.PROBABILITIES: tf.nn.softmax(logits),
            PredictionKeys.CLASS_IDS: class_ids,
            PredictionKeys.CLASSES: classes,
            PredictionKeys.ALL_CLASS_IDS: tf.tile(ids[None], rows),
            PredictionKeys.ALL_CLASSES: self._all_classes(logits),
        }

    def _all_classes(self, logits: Any) -> Any:
        """Returns the names of all classes for each example."""
        if self.label_vocabulary is None:
            names = tf.as_string(tf.range(self.n_classes))
        else:
            names = tf.constant(list(self.label_vocabulary))
        return tf.tile(names[None], [tf.shape(logits)[0], 1])

    def _export_outputs(self, predictions: dict[str, Any]) -> dict[str, ExportOutput]:
        classification = ClassificationOutput(
            predictions[PredictionKeys.PROBABILITIES],
            predictions[PredictionKeys.ALL_CLASSES],
        )
        return {
            "serving_default": classification,
            "classification": classification,
            "predict": PredictOutput(predictions),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinaryClassHead(_ClassHead):
    """The head of two classes with one logit.

    Attributes:
        thresholds: Probabilities of class 1, for which accuracy, precision and recall
            are also measured.
    """

    n_classes: int = dataclasses.field(default=2, init=False)
    thresholds: Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_thresholds(self.thresholds)

    @property
    def logits_dimension(self) -> int:
        """The size of the last axis of the logits."""
        return 1

    def _numbers(self, labels: Any) -> Any:
        ids = tf.cast(super()._numbers(labels), tf.float32)
        return or_nan(ids, (ids >= 0) & (ids <= 1))

    def _losses(self, labels: Any, logits: Any) -> Any:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    def _predictions(self, logits: Any) -> dict[str, Any]:
        logits_of_both = tf.concat([tf.zeros_like(logits), logits], axis=-1)
        return {
            PredictionKeys.LOGITS: logits,
            PredictionKeys.LOGISTIC: tf.sigmoid(logits),
            **self._class_predictions(logits_of_both),
        }

    def _metrics(self, loss: LossSpec, predictions: Mapping[str, Any]) -> _Metrics:
        classes = predictions[PredictionKeys.CLASS_IDS]
        logistic = predictions[PredictionKeys.LOGISTIC]
        labels, weights = loss.processed_labels, loss.weights
        label_mean = tf.metrics.mean(labels, weights)
        metrics = {
            MetricKeys.LOSS_MEAN: tf.metrics.mean(loss.unreduced_loss, weights),
            MetricKeys.ACCURACY: tf.metrics.accuracy(labels, classes, weights),
            MetricKeys.PRECISION: tf.metrics.precision(labels, classes, weights),
            MetricKeys.RECALL: tf.metrics.recall(labels, classes, weights),
            MetricKeys.PREDICTION_MEAN: tf.metrics.mean(logistic, weights),
            MetricKeys.LABEL_MEAN: label_mean,
            MetricKeys.ACCURACY_BASELINE: tuple(
                tf.maximum(rate, 1 - rate) for rate in label_mean
            ),
            MetricKeys.AUC: tf.metrics.auc(labels, logistic, weights),
            MetricKeys.AUC_PR: tf.metrics.auc(labels, logistic, weights, curve="PR"),
        }
        return metrics | _at_thresholds(self.thresholds, labels, logistic, weights)

    def _export_outputs(self, predictions: dict[str, Any]) -> dict[str, ExportOutput]:
        logistic = RegressionOutput(predictions[PredictionKeys.LOGISTIC])
        return {**super()._export_outputs(predictions), "regression": logistic}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiClassHead(_ClassHead):
    """The head of three or more classes with one logit for each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.n_classes, numbers.Integral) or self.n_classes <= 2:
            raise ValueError(
                "`n_classes` must be an integer above 2. Received: "
                f"{self.n_classes!r}. Use a binary head for two classes."
            )
        _check_vocabulary(self.label_vocabulary, self.n_classes)

    @property
    def logits_dimension(self) -> int:
        """The size of the last axis of the logits."""
        return self.n_classes

    def _numbers(self, labels: Any) -> Any:
        ids = super()._numbers(labels)
        if not ids.dtype.is_integer:
            raise ValueError(
                f"Labels must be integers. Received labels of dtype {ids.dtype.name}. "
                "Pass `label_vocabulary` for strings, or cast numbers in input_fn."
            )
        return ids

    def _losses(self, labels: Any, logits: Any) -> Any:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.squeeze(labels, -1), logits=logits
        )[..., None]

    def _predictions(self, logits: Any) -> dict[str, Any]:
        return {PredictionKeys.LOGITS: logits, **self._class_predictions(logits)}

    def _metrics(self, loss: LossSpec, predictions: Mapping[str, Any]) -> _Metrics:
        classes = predictions[PredictionKeys.CLASS_IDS]
        return {
            MetricKeys.LOSS_MEAN: tf.metrics.mean(loss.unreduced_loss, loss.weights),
            MetricKeys.ACCURACY: tf.metrics.accuracy(
                loss.processed_labels, classes, loss.weights
            ),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabelHead(_ClassHead):
    """The head of classes of which an example may have any number.

    Attributes:
        thresholds: Probabilities of a class, for which accuracy, precision and recall
            are also measured.
        classes_for_class_based_metrics: The numbers or names of classes that are also
            measured separately.
    """

    thresholds: Sequence[float] | None = None
    classes_for_class_based_metrics: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.n_classes, numbers.Integral) or self.n_classes < 2:
            raise ValueError(
                "`n_classes` must be an integer above 1. Received: "
                f"{self.n_classes!r}. Use a binary head for one class."
            )
        _check_vocabulary(self.label_vocabulary, self.n_classes)
        _check_thresholds(self.thresholds)
        self.class_numbers()

    def class_numbers(self) -> list[int]:
        """Returns the numbers of the classes that are measured separately."""
        words = self.label_vocabulary or ()
        numbers_of = {word: number for number, word in enumerate(words)}
        classes = self.classes_for_class_based_metrics or ()
        numbers = [numbers_of.get(name, name) for name in classes]
        if not all(number in range(self.n_classes) for number in numbers):
            raise ValueError(
                "`classes_for_class_based_metrics` must be words of "
                f"`label_vocabulary`, or integers below {self.n_classes}. Received: "
                f"{[*classes]}. Remove the others."
            )
        return numbers

    @property
    def logits_dimension(self) -> int:
        """The size of the last axis of the logits."""
        return self.n_classes

    @property
    def _label_dimension(self) -> int:
        return self.n_classes

    @property
    def _loss_dimension(self) -> int:
        return 1

    def _dense(self, labels: Any) -> Any:
        """Returns sparse classes as one number for each class."""
        if not isinstance(labels, tf.SparseTensor):
            return labels
        ids = super()._numbers(labels.values)
        if not ids.dtype.is_integer:
            raise ValueError(
                "Sparse labels must be integers. Received labels of dtype "
                f"{ids.dtype.name}. Pass `label_vocabulary` for strings."
            )
        is_class = (ids >= 0) & (ids < self.n_classes)
        rows = labels.indices[:, :-1]
        columns = tf.cast(tf.where(is_class, ids, tf.zeros_like(ids)), tf.int64)
        cells = tf.concat([rows, columns[:, None]], 1)
        # Devices ignore assertions. A number that is no class makes a label negative,
        # whatever is added to it, and the loss NaN.
        one = tf.ones_like(columns)
        marks = tf.where(is_class, one, one * _NO_CLASS)
        shape = tf.concat([labels.dense_shape[:-1], [self.n_classes]], 0)
        dense = tf.clip_by_value(tf.scatter_nd(cells, marks, shape), -1, 1)
        rank = labels.shape.ndims
        return tf.ensure_shape(dense, [*[None] * (rank - 1), self.n_classes])

    def _numbers(self, labels: Any) -> Any:
        return labels

    def _losses(self, labels: Any, logits: Any) -> Any:
        labels = tf.cast(labels, tf.float32)
        labels = or_nan(labels, (labels >= 0) & (labels <= 1))
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(losses, -1, keepdims=True)

    def _predictions(self, logits: Any) -> dict[str, Any]:
        return {
            PredictionKeys.LOGITS: logits,
            PredictionKeys.PROBABILITIES: tf.sigmoid(logits),
        }

    def _metrics(self, loss: LossSpec, predictions: Mapping[str, Any]) -> _Metrics:
        scores = predictions[PredictionKeys.PROBABILITIES]
        labels, weights = loss.processed_labels, loss.weights
        metrics = {
            MetricKeys.LOSS_MEAN: tf.metrics.mean(loss.unreduced_loss, weights),
            MetricKeys.AUC: tf.metrics.auc(labels, scores, weights),
            MetricKeys.AUC_PR: tf.metrics.auc(labels, scores, weights, curve="PR"),
            **_at_thresholds(self.thresholds, labels, scores, weights),
        }
        for number in self.class_numbers():
            mean, auc, auc_pr = self.class_metric_names(number)
            score = scores[..., number : number + 1]
            label = labels[..., number : number + 1]
            metrics[mean] = tf.metrics.mean(score, weights)
            metrics[auc] = tf.metrics.auc(label, score, weights)
            metrics[auc_pr] = tf.metrics.auc(label, score, weights, curve="PR")
        return metrics

    def class_metric_names(self, number: int) -> tuple[str, str, str]:
        """Returns the names of the mean, the AUC and the AUC of precision and recall.

        Args:
            number: The number of a class.
        """
        if self.label_vocabulary is None:
            return (
                MetricKeys.PROBABILITY_MEAN_AT_CLASS % number,
                MetricKeys.AUC_AT_CLASS % number,
                MetricKeys.AUC_PR_AT_CLASS % number,
            )
        word = self.label_vocabulary[number]
        return (
            MetricKeys.PROBABILITY_MEAN_AT_NAME % word,
            MetricKeys.AUC_AT_NAME % word,
            MetricKeys.AUC_PR_AT_NAME % word,
        )

    def _export_outputs(self, predictions: dict[str, Any]) -> dict[str, ExportOutput]:
        scores = predictions[PredictionKeys.PROBABILITIES]
        classes = {PredictionKeys.ALL_CLASSES: self._all_classes(scores)}
        outputs = super()._export_outputs(predictions | classes)
        return outputs | {"predict": PredictOutput(predictions)}


def or_nan(labels: Any, are_valid: Any) -> Any:
    """Returns labels, with NaN for wrong ones, because devices ignore assertions."""
    return tf.where(are_valid, labels, tf.fill(tf.shape(labels), float("nan")))


def _check_vocabulary(words: Sequence[str] | None, n_classes: int) -> None:
    """Raises an error if the words do not name all classes."""
    if words is not None and len(words) != n_classes:
        raise ValueError(
            f"`label_vocabulary` must have {n_classes} words, one for each class. "
            f"Received: {words!r}. Change `n_classes`."
        )


def _check_thresholds(thresholds: Sequence[float] | None) -> None:
    """Raises an error if a threshold is no probability."""
    wrong = [threshold for threshold in thresholds or () if not 0 < threshold < 1]
    if wrong:
        raise ValueError(
            f"`thresholds` must be between 0 and 1. Received: {wrong}. Remove these."
        )


def _at_thresholds(
    thresholds: Sequence[float] | None, labels: Any, scores: Any, weights: Any
) -> _Metrics:
    """Returns accuracy, precision and recall at thresholds."""
    metrics = {}
    for threshold in thresholds or ():
        above = tf.cast(scores >= threshold, tf.float32)
        metrics[MetricKeys.ACCURACY_AT_THRESHOLD % threshold] = tf.metrics.accuracy(
            labels, above, weights
        )
        for name, metric in (
            (MetricKeys.PRECISION_AT_THRESHOLD, tf.metrics.precision_at_thresholds),
            (MetricKeys.RECALL_AT_THRESHOLD, tf.metrics.recall_at_thresholds),
        ):
            pair = metric(labels, scores, [threshold], weights)
            metrics[name % threshold] = tuple(map(tf.squeeze, pair))
    return metrics
