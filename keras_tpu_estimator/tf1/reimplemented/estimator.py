"""Functions and names of `tf.estimator`, `tf.contrib.estimator` and monitors."""

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.api.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.files.directory.location import (
    latest_checkpoint,
)
from keras_tpu_estimator.files.formats.loading import load_variable

_STEP = "global_step"


def global_step_of(checkpoint_dir: str) -> int:
    """Returns the global step of the latest checkpoint of a directory, or 0.

    Args:
        checkpoint_dir: The directory.

    Example:

    >>> global_step_of("/no/such/directory")
    0
    """
    latest = latest_checkpoint(checkpoint_dir)
    if latest is None:
        return 0
    return int(load_variable(latest, _STEP))


def clip_gradients_by_norm(optimizer: Any, clip_norm: Any) -> Any:
    """Returns an optimizer that clips all gradients by their global norm.

    Args:
        optimizer: A `tf.train.Optimizer`.
        clip_norm: The norm.
    """
    return _Clipping(optimizer, clip_norm)


class _Clipping(tf.train.Optimizer):
    def __init__(self, optimizer: Any, clip_norm: Any):
        super().__init__(False, "ClipByNorm" + optimizer.get_name())
        self._optimizer, self._norm = optimizer, clip_norm

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the gradients of the optimizer."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        """Applies clipped gradients."""
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], self._norm)
        return self._optimizer.apply_gradients(
            list(zip(clipped, [v for _, v in pairs], strict=True)),
            global_step,
            name,
        )


LOSS_METRIC_KEY = "loss"
AVERAGE_LOSS_METRIC_KEY = "average_loss"


class MetricKeys:
    """The names of metrics."""

    LOSS = LOSS_METRIC_KEY
    LOSS_MEAN = AVERAGE_LOSS_METRIC_KEY
    LOSS_REGULARIZATION = "regularization_loss"
    ACCURACY = "accuracy"
    PRECISION = "precision"
    RECALL = "recall"
    ACCURACY_BASELINE = "accuracy_baseline"
    AUC = "auc"
    AUC_PR = "auc_precision_recall"
    LABEL_MEAN = "label/mean"
    PREDICTION_MEAN = "prediction/mean"
    ACCURACY_AT_THRESHOLD = "accuracy/positive_threshold_%g"
    PRECISION_AT_THRESHOLD = "precision/positive_threshold_%g"
    RECALL_AT_THRESHOLD = "recall/positive_threshold_%g"
    PROBABILITY_MEAN_AT_CLASS = "probability_mean/class%d"
    AUC_AT_CLASS = "auc/class%d"
    AUC_PR_AT_CLASS = "auc_precision_recall/class%d"
    PROBABILITY_MEAN_AT_NAME = "probability_mean/%s"
    AUC_AT_NAME = "auc/%s"
    AUC_PR_AT_NAME = "auc_precision_recall/%s"


class PredictionKeys:
    """The names of predictions."""

    CLASSES = "classes"
    CLASS_IDS = "class_ids"
    ALL_CLASSES = "all_classes"
    ALL_CLASS_IDS = "all_class_ids"
    LOGISTIC = "logistic"
    LOGITS = "logits"
    PREDICTIONS = "predictions"
    PROBABILITIES = "probabilities"
    TOP_K = "top_k"


class TaskType:
    """The names of tasks in a cluster."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


def replace_monitors_with_hooks(
    monitors_or_hooks: Sequence[Any] | None, estimator: Any
) -> list[Any]:
    """Returns hooks, because there are no monitors to replace.

    Args:
        monitors_or_hooks: Hooks of TensorFlow or of this package, or `None`.
        estimator: The estimator that will use them.

    Raises:
        TypeError: A value is not a hook.
    """
    del estimator
    hooks = list(monitors_or_hooks or [])
    kinds = (tf.train.SessionRunHook, SessionRunHook)
    for hook in hooks:
        if not isinstance(hook, kinds):
            raise TypeError(
                "`monitors_or_hooks` must be hooks. Received: "
                f"{hook!r} of type {type(hook).__name__}. Write the monitor "
                "as a tf.train.SessionRunHook."
            )
    return hooks


def classifier_parse_example_spec(
    feature_columns: Sequence[Any],
    label_key: str,
    label_dtype: Any = tf.int64,
    label_default: Any = None,
    weight_column: Any = None,
) -> dict[str, Any]:
    """Returns the spec of `tf.io.parse_example` for a classifier's examples."""
    label = tf.FixedLenFeature((1,), label_dtype, label_default)
    return _parse_spec(feature_columns, label_key, label, weight_column)


def regressor_parse_example_spec(
    feature_columns: Sequence[Any],
    label_key: str,
    label_dtype: Any = tf.float32,
    label_default: Any = None,
    label_dimension: int = 1,
    weight_column: Any = None,
) -> dict[str, Any]:
    """Returns the spec of `tf.io.parse_example` for a regressor's examples."""
    label = tf.FixedLenFeature((label_dimension,), label_dtype, label_default)
    return _parse_spec(feature_columns, label_key, label, weight_column)


def _parse_spec(columns: Any, label_key: str, label: Any, weights: Any) -> Any:
    spec = tf.feature_column.make_parse_example_spec(columns)
    if isinstance(weights, str):
        weights = tf.feature_column.numeric_column(weights)
    added = {label_key: label}
    if weights is not None and not hasattr(weights, "normalizer_fn"):
        raise ValueError(
            "`weight_column` must be the key of a feature, or a numeric column. "
            f"Received: {weights!r}. Use tf.feature_column.numeric_column."
        )
    if weights is not None:
        added |= weights.parse_example_spec
    common = sorted(spec.keys() & added.keys())
    if common:
        raise ValueError(
            "The label and the weights must not be features. Received: "
            f"{common}. Remove these from `feature_columns`."
        )
    return {**spec, **added}
