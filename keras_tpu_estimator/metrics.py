"""Metrics for a `metric_fn`, with the results of `tf.compat.v1.metrics`.

Each function takes one batch and returns a pair `(value, update)`. In the
`metric_fn` of a `TPUEstimatorSpec` the value is that of all batches so far, and
further computations can use it:

>>> import keras
>>> from keras_tpu_estimator import metrics
>>> def metric_fn(labels, logits):
...     classes = keras.ops.argmax(logits, axis=-1)
...     precision, _ = metrics.precision(labels, classes)
...     recall, _ = metrics.recall(labels, classes)
...     f1 = 2 * precision * recall / (precision + recall)
...     return {
...         "accuracy": metrics.accuracy(labels, classes),
...         "f1": (f1, f1),
...     }
>>> ops = metric_fn([1, 0], [[0.2, 0.8], [0.9, 0.1]])
>>> float(ops["accuracy"][0])
1.0

Anywhere else the value is that of one batch.

The arguments have TensorFlow's names, order and defaults, except that
`metrics_collections` and `updates_collections` are missing, because there are
no graph collections. Pass the arguments after them by keyword. Weights are a
scalar, or a tensor with the rank of the values whose dimensions are 1 or those
of the values. Sums are float32.
"""

from keras_tpu_estimator.api.metrics.averages import (
    accuracy,
    mean,
    mean_tensor,
    percentage_below,
)
from keras_tpu_estimator.api.metrics.classes import mean_iou, mean_per_class_accuracy
from keras_tpu_estimator.api.metrics.confusion import (
    false_negatives,
    false_positives,
    precision,
    recall,
    true_negatives,
    true_positives,
)
from keras_tpu_estimator.api.metrics.curves import (
    auc,
    sensitivity_at_specificity,
    specificity_at_sensitivity,
)
from keras_tpu_estimator.api.metrics.ranking import (
    average_precision_at_k,
    precision_at_k,
    precision_at_top_k,
    recall_at_k,
    recall_at_top_k,
)
from keras_tpu_estimator.api.metrics.regression import (
    mean_absolute_error,
    mean_cosine_distance,
    mean_relative_error,
    mean_squared_error,
    root_mean_squared_error,
)
from keras_tpu_estimator.api.metrics.thresholds import (
    false_negatives_at_thresholds,
    false_positives_at_thresholds,
    precision_at_thresholds,
    recall_at_thresholds,
    true_negatives_at_thresholds,
    true_positives_at_thresholds,
)

__all__ = [
    "accuracy",
    "auc",
    "average_precision_at_k",
    "false_negatives",
    "false_negatives_at_thresholds",
    "false_positives",
    "false_positives_at_thresholds",
    "mean",
    "mean_absolute_error",
    "mean_cosine_distance",
    "mean_iou",
    "mean_per_class_accuracy",
    "mean_relative_error",
    "mean_squared_error",
    "mean_tensor",
    "percentage_below",
    "precision",
    "precision_at_k",
    "precision_at_thresholds",
    "precision_at_top_k",
    "recall",
    "recall_at_k",
    "recall_at_thresholds",
    "recall_at_top_k",
    "root_mean_squared_error",
    "sensitivity_at_specificity",
    "specificity_at_sensitivity",
    "true_negatives",
    "true_negatives_at_thresholds",
    "true_positives",
    "true_positives_at_thresholds",
]
